import Foundation
import ZoSession

/// A session's engine for bundles of the target `ios-coreml`: programs are functions of one .mlpackage.
///
/// It checks a program once against the manifest, and calls its function with the package's names and types. Integers of
/// 64 bits become 32, in buffers that are kept from call to call. Every other value stays in the session's
/// memory, and results go straight to it.
public final class PackageEngine: Engine, @unchecked Sendable {
    // The session calls from one thread at a time.
    private let bundle: URL
    private let functions: any FunctionRunner
    private let programs: [String: BundleManifest.Program]
    private var checked: Set<String> = []
    private let integers = Integers()

    /// - Parameter functions: runs them; `CoreMLFunctions` on systems with Core ML.
    /// - Throws: `ZoError` of kind `bundle`: no bundle, or one of another engine.
    public init(bundle: URL, functions: any FunctionRunner) throws {
        self.bundle = bundle
        self.functions = functions
        let manifest = try BundleManifest.read(bundle)
        guard manifest.engine == "coreml", manifest.everyProgram.allSatisfy({ $0.package != nil }) else {
            throw ZoError(
                .bundle, where: bundle.path, found: "programs of the engine \(manifest.engine)",
                expected: "functions of a Core ML package", fix: "Compile it with --target ios-coreml."
            )
        }
        programs = Dictionary(manifest.everyProgram.map { ($0.name, $0) }) { first, _ in first }
    }

    public func run(program name: String, inputs: [Tensor], outputs: [Tensor]) throws {
        guard let program = programs[name] else { throw Refusal("no program \(name) in the manifest") }
        let package = bundle.appendingPathComponent(program.package!)
        try match(inputs, program.inputs, all: true)
        try match(outputs, program.outputs, all: false)
        let given = try inputs.map { tensor in
            let data = tensor.dtype == .int64 ? try integers.narrowed(tensor) : tensor.data
            return FeatureArray(feature: try feature(tensor, FeatureNames.input), data: data)
        }
        let wanted = try outputs.map { FeatureArray(feature: try feature($0, FeatureNames.output), data: $0.data) }
        if !checked.contains(name) {
            try check(program, package, given.map(\.feature))
            checked.insert(name)
        }
        try functions.run(program.entryPoint, in: package, inputs: given, outputs: wanted)
    }

    /// Checks that the session passes the manifest's values, in its order; outputs may be left out.
    private func match(_ tensors: [Tensor], _ values: [BundleManifest.Value], all: Bool) throws {
        var rest = values[...]
        for tensor in tensors {
            if !all { rest = rest.drop { $0.name != tensor.name } }
            guard let value = rest.popFirst(), value.name == tensor.name else {
                throw Refusal("the value \(tensor.name) out of the manifest's order")
            }
            let fits = value.shape.count == tensor.shape.count && zip(value.shape, tensor.shape).allSatisfy { size, found in
                switch size {
                case .fixed(let number): number == found
                case .range(let sizes): sizes.contains(found)
                }
            }
            guard "\(tensor.dtype)" == value.dtype, fits else {
                throw Refusal("\(tensor.name) of \(tensor.dtype) \(tensor.shape); the manifest has another type or shape")
            }
        }
        if all, let missing = rest.first { throw Refusal("no value \(missing.name)") }
    }

    private func feature(_ tensor: Tensor, _ named: (String) -> String) throws -> Feature {
        let dtype: Feature.DType
        switch tensor.dtype {
        case .float32: dtype = .float32
        case .float16: dtype = .float16
        case .int64, .int32: dtype = .int32
        case .int8, .uint8, .bfloat16, .uint32: throw Refusal("\(tensor.name) of \(tensor.dtype), which Core ML's arrays do not have")
        }
        return Feature(name: named(tensor.name), dtype: dtype, shape: tensor.shape)
    }

    /// The function takes these inputs and no others, and returns the program's outputs.
    private func check(_ program: BundleManifest.Program, _ package: URL, _ inputs: [Feature]) throws {
        let declared = try functions.features(of: program.entryPoint, in: package)
        guard Set(inputs.map(\.name)).count == inputs.count else {
            throw Refusal("inputs of one name in the package: \(inputs)")
        }
        for input in inputs where !declared.inputs.contains(input) {
            throw Refusal("no input \(input) of the function \(program.entryPoint), which has \(declared.inputs)")
        }
        if let other = declared.inputs.first(where: { !inputs.contains($0) }) {
            throw Refusal("the function \(program.entryPoint) with another input, \(other)")
        }
        let outputs = Set(declared.outputs.map(\.name))
        for output in program.outputs where !outputs.contains(FeatureNames.output(output.name)) {
            throw Refusal("the function \(program.entryPoint) without the output \(FeatureNames.output(output.name))")
        }
    }
}

/// Integers of 64 bits in 32, in memory that is kept from call to call.
private final class Integers {
    private var kept: [String: UnsafeMutableBufferPointer<Int32>] = [:]

    deinit {
        kept.values.forEach { $0.deallocate() }
    }

    /// The values of a tensor, until the next call with a tensor of this name.
    func narrowed(_ tensor: Tensor) throws -> UnsafeMutableRawBufferPointer {
        let numbers = tensor.data.bindMemory(to: Int64.self)
        var buffer = kept[tensor.name] ?? .init(start: nil, count: 0)
        if buffer.count < numbers.count {
            buffer.deallocate()
            buffer = .allocate(capacity: numbers.count)
            kept[tensor.name] = buffer
        }
        for (index, number) in numbers.enumerated() {
            guard let small = Int32(exactly: number) else {
                throw Refusal("\(tensor.name) with \(number), which an integer of 32 bits does not hold")
            }
            buffer[index] = small
        }
        return UnsafeMutableRawBufferPointer(rebasing: UnsafeMutableRawBufferPointer(buffer)[..<(4 * numbers.count)])
    }
}

/// Why the engine did not run a program: what becomes the `found` of the session's error.
struct Refusal: Error, CustomStringConvertible {
    let description: String

    init(_ description: String) {
        self.description = description
    }
}
