import CZoexport

/// Runs programs in place of the engine that the manifest names, for example with Core ML.
public protocol Engine: AnyObject, Sendable {
    /// Reads `inputs` and fills `outputs`, both in the manifest's order; outputs that nobody wants are left out. The
    /// tensors are valid during the call only.
    ///
    /// - Throws: anything; its description becomes the `found` of a `ZoError` of kind `engine`.
    func run(program: String, inputs: [Tensor], outputs: [Tensor]) throws
}

/// A program's input or output during one call: contiguous, row-major.
public struct Tensor {
    public enum DType: Int32, Sendable {
        case float32, int64, uint8, bfloat16, int8, uint32, float16, int32

        /// Bytes of an element.
        public var size: Int {
            switch self {
            case .int64: 8
            case .float32, .uint32, .int32: 4
            case .bfloat16, .float16: 2
            case .uint8, .int8: 1
            }
        }
    }

    public let name: String
    public let dtype: DType
    public let shape: [Int]
    public let data: UnsafeMutableRawBufferPointer
}

extension Tensor {
    init(_ tensor: zo_tensor) {
        self.init(
            name: String(cString: tensor.name), dtype: DType(rawValue: tensor.dtype)!,
            shape: UnsafeBufferPointer(start: tensor.shape, count: Int(tensor.rank)).map(Int.init),
            data: UnsafeMutableRawBufferPointer(start: tensor.data, count: tensor.bytes)
        )
    }
}

/// An engine as the C table; it must live as long as the session.
final class EngineCallback {
    private let engine: any Engine

    init(_ engine: any Engine) {
        self.engine = engine
    }

    var table: zo_engine {
        zo_engine(struct_size: UInt32(MemoryLayout<zo_engine>.size), user: Unmanaged.passUnretained(self).toOpaque()) {
            user, program, inputs, inputCount, outputs, outputCount, message, messageSize in
            let callback = Unmanaged<EngineCallback>.fromOpaque(user!).takeUnretainedValue()
            do {
                try callback.engine.run(
                    program: String(cString: program!),
                    inputs: UnsafeBufferPointer(start: inputs, count: inputCount).map(Tensor.init),
                    outputs: UnsafeBufferPointer(start: outputs, count: outputCount)
                        .filter { $0.data != nil }.map(Tensor.init)
                )
                return 0
            } catch {
                write("\(error)", message!, messageSize)
                return 1
            }
        }
    }
}

/// What the library calls after every step. It must live as long as the call of `train`.
final class ProgressCallback {
    private let body: ((StepProgress) throws -> Bool)?
    private(set) var thrown: (any Error)?

    init(_ body: ((StepProgress) throws -> Bool)?) {
        self.body = body
    }

    var user: UnsafeMutableRawPointer { Unmanaged.passUnretained(self).toOpaque() }

    /// No error crosses C: it is kept until `train` returns.
    let function: zo_on_progress = { user, progress in
        let callback = Unmanaged<ProgressCallback>.fromOpaque(user!).takeUnretainedValue()
        do {
            return try callback.body?(StepProgress(progress!.pointee)) == true ? 1 : 0
        } catch {
            callback.thrown = error
            return 1
        }
    }
}

/// Zero-terminated UTF-8, cut between characters where it is too long.
private func write(_ text: String, _ target: UnsafeMutablePointer<CChar>, _ size: Int) {
    var length = 0
    for character in text.unicodeScalars {
        let bytes = String(character).utf8
        if length + bytes.count >= size { break }
        for byte in bytes {
            target[length] = CChar(bitPattern: byte)
            length += 1
        }
    }
    target[length] = 0
}
