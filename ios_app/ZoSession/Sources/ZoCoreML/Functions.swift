import Foundation
import ZoSession

/// A value of a function of a package, by its name there.
public struct Feature: Equatable, Sendable, CustomStringConvertible {
    /// The types that Core ML's arrays have.
    public enum DType: String, Sendable {
        case float32 = "fp32", float16 = "fp16", int32

        /// Bytes of a value.
        var size: Int { self == .float16 ? 2 : 4 }
    }

    public let name: String
    public let dtype: DType
    public let shape: [Int]

    public init(name: String, dtype: DType, shape: [Int]) {
        self.name = name
        self.dtype = dtype
        self.shape = shape
    }

    public var description: String { "\(name): \(dtype.rawValue) \(shape)" }
}

/// A feature and its values: contiguous, row-major, valid during the call only.
public struct FeatureArray: @unchecked Sendable {
    public let feature: Feature
    public let data: UnsafeMutableRawBufferPointer
}

/// Runs functions of Core ML packages: Core ML itself, or a stand-in on systems without it.
///
/// One caller at a time. `PackageEngine` chooses the function, its values and their order.
public protocol FunctionRunner: AnyObject, Sendable {
    /// The inputs and outputs that a function declares, in any order.
    func features(of function: String, in package: URL) throws -> (inputs: [Feature], outputs: [Feature])

    /// Reads `inputs`, which are all that the function has, and fills `outputs`, some of those that it has.
    func run(_ function: String, in package: URL, inputs: [FeatureArray], outputs: [FeatureArray]) throws
}
