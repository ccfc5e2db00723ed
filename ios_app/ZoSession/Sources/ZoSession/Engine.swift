import CZoexport
import Foundation

/// Runs programs in place of the engine that the manifest names, for example with Core ML.
public protocol Engine: AnyObject, Sendable {
    /// Reads `inputs` and fills `outputs`, both in the manifest's order, without outputs that the call does not need. The
    /// tensors are valid during the call only. An error becomes the `found` of a `ZoError` of kind `engine`.
    func run(program: String, inputs: [Tensor], outputs: [Tensor]) throws
}

/// A program's input or output during one call: contiguous, row-major.
public struct Tensor {
    /// In the order of their numbers in `session.h`.
    public enum DType: String, CaseIterable, Decodable, Sendable {
        case float32, int64, uint8, bfloat16, int8, uint32, float16, int32
    }

    public let name: String
    public let dtype: DType
    public let shape: [Int]
    public let data: UnsafeMutableRawBufferPointer
}

extension Tensor {
    init(_ tensor: zo_tensor) {
        self.init(
            name: String(cString: tensor.name), dtype: DType.allCases[Int(tensor.dtype)],
            shape: UnsafeBufferPointer(start: tensor.shape, count: Int(tensor.rank)).map(Int.init),
            data: UnsafeMutableRawBufferPointer(start: tensor.data, count: tensor.bytes)
        )
    }
}

/// An engine that C calls, which must live as long as the session; nil: the library's own.
typealias EngineBox = Box<(any Engine)?>

extension EngineBox {
    /// Opens what computes with the engine.
    func open(
        _ body: (UnsafePointer<zo_engine>?, UnsafeMutablePointer<OpaquePointer?>, ErrorPointer) -> zo_status
    ) throws -> OpaquePointer? {
        var table = zo_engine(user: user) {
            user, program, inputs, inputCount, outputs, outputCount, message, messageSize in
            do {
                try EngineBox.of(user).value!.run(
                    program: String(cString: program!),
                    inputs: UnsafeBufferPointer(start: inputs, count: inputCount).map(Tensor.init),
                    outputs: UnsafeBufferPointer(start: outputs, count: outputCount)
                        .filter { $0.data != nil }.map(Tensor.init)
                )
                return 0
            } catch {
                var reason = String("\(error)".prefix(messageSize))
                while reason.utf8.count >= messageSize { reason.removeLast() }
                strcpy(message!, reason)
                return 1
            }
        }
        return try withUnsafePointer(to: &table) { engine in try opened { body(value.map { _ in engine }, $0, $1) } }
    }
}
