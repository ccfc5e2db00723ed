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
        let best: UInt64
        let trained: String
        let untrained: String
        let tokens: UInt32
        let questions: [String]
        let answers: [String: [String]]
    }

    private let folder = Case.file("ZOEXPORT_LIFE")
    private let output = Case.file("ZOEXPORT_OUTPUT").appendingPathComponent("life")

    private func expected() throws -> Expected {
        try JSONDecoder().decode(Expected.self, from: Data(contentsOf: folder.appendingPathComponent("expected.json")))
    }

    private func keys() throws -> [String] {
        try String(contentsOf: folder.appendingPathComponent("life.pub"), encoding: .utf8)
            .split(separator: "\n").map(String.init)
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

    private final class Said: @unchecked Sendable {
        private let lock = NSLock()
        private var pieces: [Bool: String] = [:]

        var texts: [Bool: String] { lock.withLock { pieces } }

        func add(_ trained: Bool, _ piece: String) -> Bool {
            lock.withLock { pieces[trained, default: ""] += piece }
            return false
        }
    }

    /// The first process imports, trains and is killed.
    private func beginAndBeKilled(_ steps: UInt64) throws {
        let process = Process()
        process.executableURL = Bundle.main.executableURL!.deletingLastPathComponent().appendingPathComponent("LifeKilled")
        process.arguments = [folder.path, output.path, String(steps)]
        try process.run()
        process.waitUntilExit()
        XCTAssertEqual(process.terminationReason, .uncaughtSignal)
        XCTAssertEqual(process.terminationStatus, SIGKILL)
    }

    func testKilledResumePauseResumeAskAndShare() async throws {
        let expected = try expected(), keys = try keys()
        let root = output.appendingPathComponent("app")
        try FileManager.default.createDirectory(at: root, withIntermediateDirectories: true)
        let places = Places(root: root, cache: output.appendingPathComponent("cache"))
        assertFails(.bundle) {
            try places.importBundle(folder.appendingPathComponent("plain.zobundle"), trustedKeys: keys)
        }
        try beginAndBeKilled(expected.steps)
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
        XCTAssertEqual(begun.screen.view.phase, .paused)
        XCTAssertTrue((1..<expected.steps).contains(begun.screen.view.step))
        begun.resume()
        await begun.finished()
        XCTAssertEqual(begun.screen.view.phase, .paused, "\(String(describing: begun.screen.problem))")
        first = nil
        // Another process again.
        let model = try TrainingModel(environment)
        model.resume()
        await model.finished()
        let view = model.screen.view
        XCTAssertEqual(view.phase, .done, "\(String(describing: model.screen.problem))")
        XCTAssertEqual(view.before?.loss, expected.before.loss)
        XCTAssertEqual(view.after?.loss, expected.after.loss)
        XCTAssertEqual(view.after?.accuracy, expected.after.accuracy)
        XCTAssertEqual(view.bestStep, expected.best)
        XCTAssertEqual(view.evaluations.filter(\.isBest).map(\.step), [expected.best])
        for trained in [true, false] {
            let text = try await model.withSession { session in
                var options = GenerateOptions()
                (options.untrained, options.maxNewTokens) = (!trained, expected.tokens)
                return try session.generate(expected.prompt, options: options).text
            }
            XCTAssertTrue(text.hasPrefix(trained ? expected.trained : expected.untrained))
        }
        for _ in 0..<2 {  // anew, the same
            let said = Said()
            for question in expected.questions {
                try await model.ask(question, maxNewTokens: expected.tokens) { said.add($0, $1) }
            }
            XCTAssertEqual(model.screen.talk.map(\.question), expected.questions)
            XCTAssertEqual(model.screen.talk.map(\.trained), expected.answers["trained"])
            XCTAssertEqual(model.screen.talk.map(\.untrained), expected.answers["untrained"])
            XCTAssertEqual(said.texts[true], expected.answers["trained"]?.joined())
            XCTAssertEqual(said.texts[false], expected.answers["untrained"]?.joined())
            model.hush()
        }
        XCTAssertNotEqual(expected.answers["trained"], expected.answers["untrained"])
        let (peft, gguf) = (output.appendingPathComponent("peft"), output.appendingPathComponent("adapter.gguf"))
        try await model.withSession {
            try $0.exportAdapter(to: peft)
            try $0.exportAdapter(to: gguf, format: .gguf, outtype: .f32)
        }
        let states = root.appendingPathComponent("states")
        let names = try FileManager.default.contentsOfDirectory(atPath: states.path)
        XCTAssertEqual(names.count, 1)
        try FileManager.default.copyItem(
            at: states.appendingPathComponent(names[0]), to: output.appendingPathComponent("state")
        )
    }

    /// A model without a chat template takes every question as its own prompt. It cannot learn conversations; another can.
    func testAModelWithoutATemplateIsPrompted() async throws {
        let expected = try expected()
        let root = output.appendingPathComponent("prompts")
        let places = Places(root: root, cache: output.appendingPathComponent("cache"))
        var environment = TrainingModel.Environment(
            places: places, conditions: { ZoSession.Conditions() }, engine: { _ in nil }
        )
        environment.trustedKeys = try keys()
        let bundles = try ["prompts", "life"].map {
            try places.importBundle(folder.appendingPathComponent("\($0).zobundle"), trustedKeys: environment.trustedKeys)
        }
        let model = try TrainingModel(environment)
        model.choose(JobRequest(bundle: bundles[0], data: folder.appendingPathComponent("life.jsonl"), steps: 1))
        model.start()
        await model.finished()
        for number in 1...2 {
            try await model.ask(expected.prompt, maxNewTokens: expected.tokens)
            XCTAssertEqual(model.screen.talk.count, number)
            XCTAssertTrue(try XCTUnwrap(model.screen.talk.last).untrained.hasPrefix(expected.untrained))
        }
        var chat = TypedExample.conversation
        chat.messages?[1].content = "How was it?"
        chat.messages?[2].content = "Warm."
        let typed = root.appendingPathComponent("typed.jsonl")
        try TypedExample.write([chat.typed], to: typed)
        for bundle in bundles {
            model.choose(JobRequest(bundle: bundle, data: typed, steps: 1))
            XCTAssertEqual(model.screen.talk, [])
            model.start(.anew)
            await model.finished()
            if bundle == bundles[0] {
                XCTAssertEqual(model.screen.problem?.where, "\(typed.path):1, chat")
                XCTAssertEqual(model.screen.problem?.found, "a model whose tokenizer has no chat template")
            } else {
                XCTAssertEqual(model.screen.view.phase, .done)
                XCTAssertEqual(model.screen.view.examples, 1)
            }
        }
    }
}
