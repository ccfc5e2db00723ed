import Cases
import Foundation
import XCTest
import ZoSession

/// An engine in Swift, as Core ML will be one.
final class EngineTests: XCTestCase {
    /// Says of every label that its log-probability is minus its token, and notes what it was asked.
    private final class Recorder: Engine, @unchecked Sendable {
        struct Failed: Error, CustomStringConvertible {
            var description = "no such shape ▶ \u{1F98A}"
        }

        var fails = false
        private(set) var programs: Set<String> = []
        private(set) var inputs: [String: [Int]] = [:]

        func run(program: String, inputs: [Tensor], outputs: [Tensor]) throws {
            if fails { throw Failed() }
            programs.insert(program)
            self.inputs = Dictionary(uniqueKeysWithValues: inputs.map { ($0.name, $0.shape) })
            let labels = inputs.first { $0.name == "label_tokens" }!
            XCTAssertEqual(labels.dtype, .int64)
            let tokens = labels.data.bindMemory(to: Int64.self)
            for output in outputs {
                XCTAssertEqual(output.dtype, .float32)
                XCTAssertEqual(output.data.count, 4 * output.shape.reduce(1, *))
                let values = output.data.bindMemory(to: Float.self)
                if let state = inputs.first(where: { $0.name == output.name }) {
                    values.baseAddress!.update(from: state.data.bindMemory(to: Float.self).baseAddress!, count: values.count)
                } else {
                    for index in values.indices {
                        values[index] = -Float(tokens[index % tokens.count]) / 100
                    }
                }
            }
        }
    }

    func testASessionRunsTheHostsEngine() throws {
        let test = try Case("prge-mlx") // programs of the whole model
        let engine = Recorder()
        let dataset = try Dataset()
        try dataset.add([Candidate(tokens: [5, 6, 7], labels: [-100, 20, 40])])
        let session = try TrainingSession(bundle: test.bundle, engine: engine)
        let evaluation = try session.evaluate(dataset)
        XCTAssertEqual(try XCTUnwrap(evaluation.loss), 0.3, accuracy: 1e-6)
        XCTAssertNil(evaluation.accuracy)
        let step = try session.step(dataset, indices: [0])
        // All copies have the same loss, so no direction is better than another.
        XCTAssertEqual(step.gradients, [Float](repeating: 0, count: try session.info.numQueries))
        XCTAssertEqual(engine.programs, ["train", "evaluate"])
        let slot = test.expected.slots.last!
        XCTAssertEqual(engine.inputs[slot.name], slot.shape)
        engine.fails = true
        let error = assertFails(.engine) { try session.step(dataset, indices: [0]) }
        XCTAssertEqual(error?.found, Recorder.Failed().description)
        XCTAssertEqual(try session.info.steps, 1)
    }
}
