import Cases
import Foundation
import XCTest
import ZoSession
import ZoTraining

/// The whole life of a fine-tuning, as an app that ships a key has it (tests/support/life_cases.py).
@MainActor
final class LifeTests: XCTestCase {
    private struct Expected: Decodable {
        struct Evaluated: Decodable {
            let loss: Double
            let accuracy: Double?
        }

        let steps: UInt64
        let prompt: String
        let before: Evaluated
        let after: Evaluated
        let trained: String
        let untrained: String
    }

    /// Pauses once, at the tenth look at the device.
    private final class Looks: @unchecked Sendable {
        private let lock = NSLock()
        private var count = 0

        func isTenth() -> Bool {
            lock.withLock {
                count += 1
                return count == 10
            }
        }
    }

    func testImportTrainPauseResumeAskAndShare() async throws {
        let folder = Case.file("ZOEXPORT_LIFE")
        let output = Case.file("ZOEXPORT_OUTPUT").appendingPathComponent("life")
        let expected = try JSONDecoder().decode(
            Expected.self, from: Data(contentsOf: folder.appendingPathComponent("expected.json"))
        )
        let keys = try String(contentsOf: folder.appendingPathComponent("life.pub"), encoding: .utf8)
            .split(separator: "\n").map(String.init)
        let root = output.appendingPathComponent("app")
        try FileManager.default.createDirectory(at: root, withIntermediateDirectories: true)
        let places = Places(root: root, cache: output.appendingPathComponent("cache"))
        assertFails(.bundle) {
            try places.importBundle(folder.appendingPathComponent("plain.zobundle"), trustedKeys: keys)
        }
        let bundle = try places.importBundle(folder.appendingPathComponent("life.zobundle"), trustedKeys: keys)
        let looks = Looks()
        var first: TrainingModel?
        var environment = TrainingModel.Environment(
            places: places,
            conditions: {
                if looks.isTenth() { Task { @MainActor in first?.pause() } }
                return ZoSession.Conditions()
            },
            engine: { _ in nil }
        )
        environment.trustedKeys = keys
        let begun = try TrainingModel(environment)
        first = begun
        begun.choose(JobRequest(bundle: bundle, data: folder.appendingPathComponent("life.jsonl"), steps: expected.steps))
        begun.start()
        await begun.finished()
        XCTAssertEqual(begun.screen.view.phase, .paused, "\(String(describing: begun.screen.problem))")
        first = nil
        // Another process.
        let model = try TrainingModel(environment)
        model.resume()
        await model.finished()
        let view = model.screen.view
        XCTAssertEqual(view.phase, .done, "\(String(describing: model.screen.problem))")
        XCTAssertEqual(view.before?.loss, expected.before.loss)
        XCTAssertEqual(view.after?.loss, expected.after.loss)
        XCTAssertEqual(view.after?.accuracy, expected.after.accuracy)
        let trained = try await model.ask(expected.prompt, trained: true)
        let untrained = try await model.ask(expected.prompt, trained: false)
        XCTAssertTrue(trained.hasPrefix(expected.trained))
        XCTAssertTrue(untrained.hasPrefix(expected.untrained))
        XCTAssertNotEqual(trained, untrained)
        let (peft, gguf) = (output.appendingPathComponent("peft"), output.appendingPathComponent("adapter.gguf"))
        try await model.withSession {
            try $0.exportAdapter(to: peft)
            try $0.exportAdapter(to: gguf, format: .gguf(.f32))
        }
        let states = root.appendingPathComponent("states")
        let names = try FileManager.default.contentsOfDirectory(atPath: states.path)
        XCTAssertEqual(names.count, 1)
        try FileManager.default.copyItem(
            at: states.appendingPathComponent(names[0]), to: output.appendingPathComponent("state")
        )
    }
}
