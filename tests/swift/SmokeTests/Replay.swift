import Cases
import Foundation
import XCTest
import ZoCoreML

/// Stands where Core ML would: gives the recorded results of a package again, and compares what it is given
/// (tests/support/coreml_recording.py).
final class Replay: FunctionRunner, @unchecked Sendable {
    struct Declared: Decodable {
        struct Value: Decodable {
            let name: String
            let dtype: String
            let shape: [Int]

            var feature: Feature { Feature(name: name, dtype: Feature.DType(rawValue: dtype)!, shape: shape) }
        }

        let inputs: [Value]
        let outputs: [Value]
    }

    private struct Call: Decodable {
        struct Value: Decodable {
            let name: String
            let offset: Int
            let shape: [Int]
        }

        let function: String
        let inputs: [Value]
        let outputs: [Value]
    }

    struct Failed: Error, CustomStringConvertible {
        var description = "out of memory"
    }

    let declared: [String: Declared]
    /// Whether calls fail, as Core ML's do on a phone that has no memory left.
    var fails = false
    private let package: URL
    private let calls: [Call]
    private let values: Data
    private(set) var done = 0
    /// Where integers were, by the name of the input.
    private(set) var integers: [String: Set<UnsafeMutableRawPointer>] = [:]

    var isDone: Bool { done == calls.count }

    init(_ test: Case) throws {
        func file(_ name: String) throws -> Data { try Data(contentsOf: test.folder.appendingPathComponent(name)) }
        package = test.bundle.appendingPathComponent("model.mlpackage")
        declared = try JSONDecoder().decode([String: Declared].self, from: file("functions.json"))
        calls = try JSONDecoder().decode([Call].self, from: file("calls.json"))
        values = try file("values.bin")
    }

    func features(of function: String, in package: URL) throws -> (inputs: [Feature], outputs: [Feature]) {
        XCTAssertEqual(package.standardizedFileURL, self.package.standardizedFileURL)
        let found = try XCTUnwrap(declared[function], function)
        return (found.inputs.map(\.feature).shuffled(), found.outputs.map(\.feature).shuffled())
    }

    func run(_ function: String, in package: URL, inputs: [FeatureArray], outputs: [FeatureArray]) throws {
        if fails { throw Failed() }
        let call = calls[done]
        done += 1
        XCTAssertEqual(function, call.function)
        XCTAssertEqual(inputs.map(\.feature.name), call.inputs.map(\.name))
        XCTAssertEqual(inputs.map(\.feature), declared[function]?.inputs.map(\.feature))
        for (array, wanted) in zip(inputs, call.inputs) {
            if array.feature.dtype == .float32 {
                assertClose(array, bytes(wanted, like: array))
                continue
            }
            // Slots of fp16 are what a function returned.
            XCTAssertEqual(Data(array.data), bytes(wanted, like: array), array.feature.name)
            if array.feature.dtype == .int32 {
                integers[array.feature.name, default: []].insert(array.data.baseAddress!)
            }
        }
        // A result that this call does not need is not asked for.
        let results = Dictionary(uniqueKeysWithValues: call.outputs.map { ($0.name, $0) })
        XCTAssertEqual(Set(outputs.map(\.feature.name)), Set(results.keys))
        for array in outputs {
            let result = try XCTUnwrap(results[array.feature.name])
            XCTAssertEqual(array.feature.shape, result.shape)
            array.data.copyBytes(from: bytes(result, like: array))
        }
    }

    private func bytes(_ value: Call.Value, like array: FeatureArray) -> Data {
        values[value.offset..<value.offset + array.data.count]
    }

    /// The session's own arithmetic between two calls takes exponentials from the system, whose last bits differ.
    private func assertClose(_ array: FeatureArray, _ wanted: Data) {
        let found = array.data.bindMemory(to: Float.self)
        var values = [Float](repeating: 0, count: found.count)
        _ = values.withUnsafeMutableBytes { wanted.copyBytes(to: $0) }
        let size = values.reduce(0) { max($0, abs($1)) }
        let error = zip(found, values).reduce(0) { max($0, abs($1.0 - $1.1)) }
        XCTAssertLessThanOrEqual(error, 1e-5 * size, array.feature.name)
    }
}
