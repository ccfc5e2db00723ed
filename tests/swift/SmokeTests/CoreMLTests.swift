import Cases
import Foundation
import XCTest

@testable import ZoCoreML
@testable import ZoSession

/// The engine for Core ML packages, with a double where Core ML would be.
final class CoreMLTests: XCTestCase {
    private let cases = ["mebp-coreml", "prge-coreml", "senszoq-coreml"]

    func testASessionTrainsWithThePackagesFunctions() throws {
        for name in cases {
            let test = try Case(name)
            let functions = try Replay(test)
            let dataset = try test.examples()
            let session = try test.prepared("whole", engine: try PackageEngine(bundle: test.bundle, functions: functions))
            try assertEvaluation(test.expected.before, session, dataset, test.expected.bounds)
            try session.train(dataset, totalSteps: test.expected.steps)
            try assertFinished(session, test.expected)
            try assertEvaluation(test.expected.after, session, dataset, test.expected.bounds)
            XCTAssertTrue(functions.isDone)
            // Every call has the same memory for its integers.
            XCTAssertEqual(functions.integers["tokens"]?.count, 1)
            XCTAssertEqual(functions.integers["label_tokens"]?.count, 1)
            try session.close()
        }
    }

    /// Names, types, shapes and order of the manifest are those that the compiled package has.
    func testTheManifestIsThePackage() throws {
        for name in cases {
            let test = try Case(name)
            let declared = try Replay(test).declared
            let manifest = try BundleManifest.read(test.bundle)
            XCTAssertEqual(Set(manifest.programs.map(\.entryPoint)), Set(declared.keys))
            let types = ["int64": "int32", "float32": "fp32", "float16": "fp16"]
            for program in manifest.programs {
                let function = try XCTUnwrap(declared[program.entryPoint])
                XCTAssertEqual(program.package, "model.mlpackage")
                for (values, features, named) in [
                    (program.inputs, function.inputs, FeatureNames.input),
                    (program.outputs, function.outputs, FeatureNames.output),
                ] {
                    XCTAssertEqual(values.map { named($0.name) }, features.map(\.name))
                    XCTAssertEqual(values.map { types[$0.dtype] }, features.map(\.dtype))
                    XCTAssertEqual(values.map(\.shape), features.map { $0.shape.map(BundleManifest.Size.fixed) })
                }
            }
        }
    }

    func testNamesAreThoseOfTheCompiler() throws {
        let file = try Case(cases[0]).folder.appendingPathComponent("names.json")
        let names = try JSONDecoder().decode([String: [String]].self, from: Data(contentsOf: file))
        XCTAssertGreaterThan(names.count, 5)
        for (name, wanted) in names {
            XCTAssertEqual([FeatureNames.input(name), FeatureNames.output(name)], wanted, name)
        }
    }

    func testAFailureIsTheEnginesAndTheStepHasNotHappened() throws {
        let test = try Case(cases[0])
        let functions = try Replay(test)
        let session = try test.prepared(nil, engine: try PackageEngine(bundle: test.bundle, functions: functions))
        functions.fails = true
        let error = assertFails(.engine) { try session.train(try test.examples(), totalSteps: 1) }
        XCTAssertEqual(error?.found, "out of memory")
        XCTAssertEqual(try session.info.steps, 0)
    }

    func testAnotherBundleIsRefused() throws {
        let functions = try Replay(try Case(cases[0]))
        let other = assertFails(.bundle) { try PackageEngine(bundle: try Case("prge").bundle, functions: functions) }
        XCTAssertEqual(other?.fix, "Compile it with --target ios-coreml.")
        let nowhere = URL(fileURLWithPath: "/nowhere")
        assertFails(.bundle) { try PackageEngine(bundle: nowhere, functions: functions) }
    }

    /// A package that is not what the manifest says is refused before it runs.
    func testAnotherPackageIsRefused() throws {
        let test = try Case(cases[1])
        for (change, message) in [
            ({ $0.removeLast() } as (inout [Feature]) -> Void, "no input"),
            ({ $0.append(Feature(name: "more", dtype: .float32, shape: [1])) }, "another input"),
            ({ $0[0] = Feature(name: $0[0].name, dtype: $0[0].dtype, shape: [1]) }, "no input tokens"),
            ({ $0[0] = Feature(name: $0[0].name, dtype: .float16, shape: $0[0].shape) }, "no input tokens"),
        ] {
            let functions = Changed(try Replay(test), change)
            let session = try test.prepared(nil, engine: try PackageEngine(bundle: test.bundle, functions: functions))
            let error = assertFails(.engine) { try session.evaluate(try test.examples()) }
            XCTAssertTrue(error?.found.contains(message) == true, "\(String(describing: error))")
        }
    }

    /// No session passes these: another order, another type, a number that Core ML has no type for.
    func testOtherValuesAreRefused() throws {
        let test = try Case(cases[1])
        let functions = try Replay(test)
        let engine = try PackageEngine(bundle: test.bundle, functions: functions)
        let program = try XCTUnwrap(try BundleManifest.read(test.bundle).programs.first { $0.name == "evaluate" })
        var memory: [UnsafeMutableRawBufferPointer] = []
        defer { memory.forEach { $0.deallocate() } }
        let inputs = program.inputs.map { value in
            let shape = value.shape.map { if case .fixed(let size) = $0 { size } else { 0 } }
            let dtype: Tensor.DType = value.dtype == "int64" ? .int64 : .float32
            memory.append(.allocate(byteCount: shape.reduce(8, *), alignment: 8))
            memory.last!.initializeMemory(as: UInt8.self, repeating: 0)
            return Tensor(name: value.name, dtype: dtype, shape: shape, data: memory.last!)
        }
        func refused(_ inputs: [Tensor], program: String = "evaluate") -> String {
            do {
                try engine.run(program: program, inputs: inputs, outputs: [])
                return "it ran"
            } catch { return "\(error)" }
        }
        let first = inputs[0]
        let rest = Array(inputs.dropFirst())
        XCTAssertEqual(refused(inputs, program: "other"), "no program other in the manifest")
        XCTAssertTrue(refused(rest).hasSuffix("out of the manifest's order"))
        XCTAssertTrue(refused(inputs.dropLast()).hasPrefix("no value "))
        let short = Tensor(name: first.name, dtype: first.dtype, shape: [1], data: first.data)
        XCTAssertTrue(refused([short] + rest).hasSuffix("the manifest has another type or shape"))
        first.data.storeBytes(of: 1 << 31, as: Int64.self)
        XCTAssertTrue(refused(inputs).contains("with 2147483648"))
    }

    func testResultsWithGapsAreCopiedWithoutThem() {
        let source = (0..<48).map { Float($0) }
        func dense(_ shape: [Int], _ strides: [Int]) -> [Float] {
            var target = [Float](repeating: -1, count: shape.reduce(1, *))
            target.withUnsafeMutableBytes { target in
                source.withUnsafeBytes {
                    copyDense(from: $0.baseAddress!, shape: shape, strides: strides, size: 4, to: target)
                }
            }
            return target
        }
        XCTAssertEqual(dense([2, 3, 4], [12, 4, 1]), Array(source[..<24]))
        XCTAssertEqual(dense([2, 3], [8, 1]), [0, 1, 2, 8, 9, 10])
        XCTAssertEqual(dense([2, 1, 2], [24, 5, 1]), [0, 1, 24, 25])
        XCTAssertEqual(dense([2, 2, 2], [1, 2, 16]), [0, 16, 2, 18, 1, 17, 3, 19])
        XCTAssertEqual(dense([], []), [0])
        XCTAssertEqual(denseStrides([2, 3, 4]), [12, 4, 1])
        XCTAssertEqual(denseStrides([]), [])
    }
}

/// A package whose functions declare other inputs.
private final class Changed: FunctionRunner, @unchecked Sendable {
    private let functions: any FunctionRunner
    private let change: (inout [Feature]) -> Void

    init(_ functions: any FunctionRunner, _ change: @escaping (inout [Feature]) -> Void) {
        self.functions = functions
        self.change = change
    }

    func features(of function: String, in package: URL) throws -> (inputs: [Feature], outputs: [Feature]) {
        var (inputs, outputs) = try functions.features(of: function, in: package)
        inputs.sort { $0.name == "tokens" && $1.name != "tokens" }
        change(&inputs)
        return (inputs, outputs)
    }

    func run(_ function: String, in package: URL, inputs: [FeatureArray], outputs: [FeatureArray]) throws {
        XCTFail("it runs")
    }
}
