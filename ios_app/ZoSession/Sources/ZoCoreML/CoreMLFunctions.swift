#if canImport(CoreML)
import CoreML
import Foundation
import ZoSession

/// Runs functions of packages with Core ML. A function is loaded when it is first called, and stays loaded.
@available(iOS 18, macOS 15, *)
public final class CoreMLFunctions: FunctionRunner, @unchecked Sendable {
    // One caller at a time, as the protocol says.
    private let compiled: [URL: URL]
    private let units: MLComputeUnits
    private var models: [String: MLModel] = [:]

    /// Has the system compile the packages of a bundle, once: into `cache`, below a folder named by the bundle's id.
    ///
    /// - Parameter units: what Core ML may compute on.
    /// - Throws: `ZoError` of kind `bundle`, or what Core ML says of a package that it cannot compile.
    public init(bundle: URL, cache: URL, units: MLComputeUnits = .all) async throws {
        let manifest = try BundleManifest.read(bundle)
        let folder = cache.appendingPathComponent(manifest.bundleId)
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        var compiled: [URL: URL] = [:]
        for package in Set(manifest.everyProgram.compactMap(\.package)) {
            let source = bundle.appendingPathComponent(package)
            let target = folder.appendingPathComponent(package.replacingOccurrences(of: "/", with: "_") + "c")
            if !FileManager.default.fileExists(atPath: target.path) {
                // Moved, so that what is there is whole.
                let made = try await MLModel.compileModel(at: source)
                try FileManager.default.moveItem(at: made, to: target)
            }
            compiled[source.standardizedFileURL] = target
        }
        self.compiled = compiled
        self.units = units
    }

    public func features(of function: String, in package: URL) throws -> (inputs: [Feature], outputs: [Feature]) {
        let description = try model(function, package).modelDescription
        return (
            try description.inputDescriptionsByName.values.map(feature),
            try description.outputDescriptionsByName.values.map(feature)
        )
    }

    public func run(_ function: String, in package: URL, inputs: [FeatureArray], outputs: [FeatureArray]) throws {
        try autoreleasepool {
            let given = try inputs.map { ($0.feature.name, MLFeatureValue(multiArray: try array($0))) }
            let backings = try outputs.map { ($0.feature.name, try array($0)) }
            let options = MLPredictionOptions()
            options.outputBackings = Dictionary(uniqueKeysWithValues: backings)
            let provider = try MLDictionaryFeatureProvider(dictionary: Dictionary(uniqueKeysWithValues: given))
            let results = try model(function, package).prediction(from: provider, options: options)
            for (output, (name, backing)) in zip(outputs, backings) {
                guard let found = results.featureValue(for: name)?.multiArrayValue else {
                    throw Refusal("no result \(name) of the function \(function)")
                }
                // Core ML may compute into memory of its own instead.
                if found !== backing { try copy(found, to: output) }
            }
        }
    }

    private func model(_ function: String, _ package: URL) throws -> MLModel {
        if let model = models[function] { return model }
        guard let file = compiled[package.standardizedFileURL] else { throw Refusal("no package \(package.path)") }
        let configuration = MLModelConfiguration()
        configuration.computeUnits = units
        configuration.functionName = function
        let model = try MLModel(contentsOf: file, configuration: configuration)
        models[function] = model
        return model
    }

    private func feature(_ description: MLFeatureDescription) throws -> Feature {
        guard let constraint = description.multiArrayConstraint else {
            throw Refusal("\(description.name), which is no array")
        }
        return Feature(
            name: description.name, dtype: try Feature.DType(constraint.dataType),
            shape: constraint.shape.map(\.intValue)
        )
    }

    /// The session's memory as Core ML's array.
    private func array(_ values: FeatureArray) throws -> MLMultiArray {
        try MLMultiArray(
            dataPointer: values.data.baseAddress!, shape: values.feature.shape.map { NSNumber(value: $0) },
            dataType: values.feature.dtype.coreML, strides: denseStrides(values.feature.shape).map { NSNumber(value: $0) },
            deallocator: nil
        )
    }

    private func copy(_ found: MLMultiArray, to output: FeatureArray) throws {
        let result = Feature(
            name: output.feature.name, dtype: try Feature.DType(found.dataType), shape: found.shape.map(\.intValue)
        )
        guard result == output.feature else { throw Refusal("the result \(result), where \(output.feature) was asked for") }
        found.withUnsafeBytes { bytes in
            copyDense(
                from: bytes.baseAddress!, shape: result.shape, strides: found.strides.map(\.intValue),
                size: result.dtype.size, to: output.data
            )
        }
    }
}

@available(iOS 16, macOS 13, *)
extension Feature.DType {
    fileprivate init(_ type: MLMultiArrayDataType) throws {
        switch type {
        case .float32: self = .float32
        case .float16: self = .float16
        case .int32: self = .int32
        default: throw Refusal("an array of the type \(type.rawValue), which no bundle has")
        }
    }

    fileprivate var coreML: MLMultiArrayDataType {
        switch self {
        case .float32: .float32
        case .float16: .float16
        case .int32: .int32
        }
    }
}
#endif
