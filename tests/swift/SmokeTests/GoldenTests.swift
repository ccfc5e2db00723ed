import Cases
import Foundation
import XCTest
import ZoSession

/// graphs/golden/trajectories.json over the bundles of tests/support/trajectories.py, which `ZOEXPORT_TRAJECTORIES` names.
final class GoldenTests: XCTestCase {
    private struct Golden: Decodable {
        struct Run: Decodable {
            let method: String
            let seed: String
            let steps: UInt64
            let batches: [[UInt64]]
            let losses: [[Double]]
            let rates: [String]
            let eps: String
            let gradients: [[String]]
            let slots: [String: String]

            /// Slots and their words.
            var values: [(String, [String])] {
                slots.map { ($0, $1.split(separator: " ").map(String.init)) }
            }
        }

        let tolerances: Expected.Bounds
        let trajectories: [Run]
    }

    private let folder = Case.file("ZOEXPORT_TRAJECTORIES")
    private var golden: Golden!

    override func setUpWithError() throws {
        let file = Case.file("ZOEXPORT_GOLDEN").appendingPathComponent("trajectories.json")
        golden = try JSONDecoder().decode(Golden.self, from: Data(contentsOf: file))
        XCTAssertEqual(golden.trajectories.map(\.method), ["prge", "mebp"])
    }

    private func open(_ place: String) throws -> TrainingSession {
        try TrainingSession(bundle: folder.appendingPathComponent(place).appendingPathComponent("bundle"))
    }

    /// Losses and slots within the bounds, through ExecuTorch and MLX; rates, and what follows from losses, exactly.
    func testSteps() throws {
        let dataset = try Dataset()
        try dataset.load(folder.appendingPathComponent("examples.jsonl"))
        for run in golden.trajectories {
            for place in [run.method, "\(run.method)-mlx"] {
                let session = try open(place)
                XCTAssertEqual(try session.settings["seed"]?.integer, UInt64(run.seed, radix: 16))
                try session.configure(["total_steps": Setting(run.steps)])
                for (number, batch) in run.batches.enumerated() {
                    let step = try session.step(dataset, indices: batch)
                    XCTAssertEqual(step.losses.count, run.losses[number].count)
                    for (loss, wanted) in zip(step.losses, run.losses[number]) {
                        XCTAssertLessThanOrEqual(abs(loss / wanted - 1), golden.tolerances.loss, "\(place) \(number)")
                    }
                    XCTAssertEqual(bits(Float(step.learningRate)), run.rates[number])
                    XCTAssertEqual(step.gradients.count, run.gradients.isEmpty ? 0 : run.gradients[number].count)
                    let width = 2 * Double(value(run.eps))
                    for (query, gradient) in step.gradients.enumerated() {
                        let difference = step.losses[2 * query] - step.losses[2 * query + 1]
                        XCTAssertEqual(gradient, Float(difference / width))
                    }
                }
                for (name, words) in run.values {
                    assertValues(try session.readSlot(name), words, golden.tolerances)
                }
            }
        }
    }

    /// The noise specification fixes these slots to the last bit.
    func testTheGoldenLogGivesTheGoldenBits() throws {
        for run in golden.trajectories where !run.gradients.isEmpty {
            let session = try open(run.method)
            try session.attach(folder.appendingPathComponent(run.method).appendingPathComponent("logged"), readOnly: true)
            XCTAssertEqual(try session.info.steps, run.steps)
            for (name, words) in run.values {
                assertValues(try session.readSlot(name), words, nil)
            }
        }
    }
}
