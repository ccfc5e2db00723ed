import Cases
import Foundation
import XCTest
import ZoSession

/// Text with adapters that are switched in between: what Python's host generated (tests/support/generation_cases.py).
final class GenerationTests: XCTestCase {
    private struct Expected: Decodable {
        let prompt: String?
        let messages: [[String]]
        let adapter: String?
        let maxNewTokens: UInt32
        let stop: [String]
        let temperature: Double
        let topK: UInt32
        let topP: Double
        let minP: Double
        let repetitionPenalty: Double
        let seed: String
        let text: String
        let tokens: [Int64]
        let promptTokens: UInt64
        let reason: String

        var options: GenerateOptions {
            var options = GenerateOptions()
            options.maxNewTokens = maxNewTokens
            options.stop = stop
            options.adapter = adapter
            options.temperature = temperature
            options.topK = topK
            options.topP = topP
            options.minP = minP
            options.repetitionPenalty = repetitionPenalty
            options.seed = UInt64(seed)!
            return options
        }
    }

    private let folder = Case.file("ZOEXPORT_GENERATIONS")
    private let prompt = "The film is a warm and café"
    private var session: TrainingSession!

    override func setUpWithError() throws {
        session = try TrainingSession(bundle: folder.appendingPathComponent("bundle"))
        for name in ["a", "b"] {
            try session.loadAdapter(name, from: folder.appendingPathComponent(name))
        }
    }

    /// XCTest keeps its cases, and their sessions would keep their threads from the tests that follow.
    override func tearDown() {
        session = nil
    }

    func testTextsAreThoseOfPython() throws {
        let decoder = JSONDecoder()
        decoder.keyDecodingStrategy = .convertFromSnakeCase
        let cases = try decoder.decode(
            [Expected].self, from: Data(contentsOf: folder.appendingPathComponent("cases.json"))
        )
        XCTAssertEqual(try session.info.adapters, ["a", "b"])
        XCTAssertGreaterThan(cases.count, 10)
        for expected in cases {
            var pieces = ""
            let listen: (String) -> Bool = { piece in
                pieces += piece
                return false
            }
            let made: Generation
            if let prompt = expected.prompt {
                made = try session.generate(prompt, options: expected.options, onText: listen)
            } else {
                let messages = expected.messages.map { Message(role: $0[0], content: $0[1]) }
                made = try session.generate(messages: messages, options: expected.options, onText: listen)
            }
            XCTAssertEqual(made.text, expected.text)
            XCTAssertEqual(pieces, expected.text)
            XCTAssertEqual(made.tokens, expected.tokens)
            XCTAssertEqual("\(made.stop)", expected.reason)
            XCTAssertEqual(made.promptTokens, expected.promptTokens)
        }
    }

    func testAdaptersComeAndGo() throws {
        var options = GenerateOptions()
        options.maxNewTokens = 12
        let plain = try session.generate(prompt, options: options).text
        options.adapter = "a"
        let adapted = try session.generate(prompt, options: options).text
        XCTAssertNotEqual(plain, adapted)
        try session.dropAdapter("b")
        XCTAssertEqual(try session.info.adapters, ["a"])
        assertFails(.state) {
            try self.session.loadAdapter("a", from: self.folder.appendingPathComponent("bundle"))
        }
        XCTAssertEqual(try session.generate(prompt, options: options).text, adapted)
        options.adapter = "b"
        assertFails(.invalidArgument) { try self.session.generate(self.prompt, options: options) }
        options.adapter = nil
        options.untrained = true
        XCTAssertEqual(try session.generate(prompt, options: options).text, plain)
    }

    func testAdaptersLeaveAsFiles() throws {
        let files = FileManager.default
        let output = files.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        defer { try? files.removeItem(at: output) }
        let file = output.appendingPathComponent("é.gguf")
        try session.exportAdapter(to: file, format: .gguf, outtype: .q8_0)
        XCTAssertEqual(try Data(contentsOf: file), try Data(contentsOf: folder.appendingPathComponent("exported.gguf")))
        let peft = output.appendingPathComponent("peft")
        try session.exportAdapter(to: peft)
        for name in ["adapter_config.json", "adapter_model.safetensors"] {
            XCTAssertEqual(
                try Data(contentsOf: peft.appendingPathComponent(name)),
                try Data(contentsOf: folder.appendingPathComponent("exported").appendingPathComponent(name))
            )
        }
        assertFails(.invalidArgument) { try self.session.exportAdapter(to: file, format: .gguf) }
        try session.exportAdapter(to: peft, replace: true)
        XCTAssertEqual(try files.contentsOfDirectory(atPath: output.path).count, 2)
    }

    func testKeptCachesAreReadOn() throws {
        var options = GenerateOptions()
        options.maxNewTokens = 5
        options.keep = true
        XCTAssertEqual(try session.generate(prompt, options: options).keptTokens, 0)
        XCTAssertGreaterThan(try session.generate(prompt + " and more", options: options).keptTokens, 0)
        try session.forget()
        XCTAssertEqual(try session.generate(prompt, options: options).keptTokens, 0)
    }

    func testCallersEndTexts() throws {
        struct Own: Error {}
        let made = try session.generate(prompt) { _ in true }
        XCTAssertEqual(made.stop, .caller)
        XCTAssertThrowsError(try session.generate(prompt) { _ in throw Own() }) { XCTAssertTrue($0 is Own) }
        assertFails(.invalidArgument) { try self.session.generate("") }
        assertFails(.invalidArgument) { try self.session.generate(messages: []) }
        var options = GenerateOptions()
        options.stop = [""]
        assertFails(.invalidArgument) { try self.session.generate(self.prompt, options: options) }
    }
}
