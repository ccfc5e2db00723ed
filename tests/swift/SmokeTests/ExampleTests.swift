import Cases
import Foundation
import XCTest
import ZoSession

/// Data files become the examples that Python makes of them (tests/support/text_cases.py).
final class ExampleTests: XCTestCase {
    private let texts = Case.file("ZOEXPORT_TEXTS")
    private let bundle = Case.file("ZOEXPORT_TRAJECTORIES").appendingPathComponent("prge/bundle")

    private func written(_ content: String) throws -> URL {
        let file = FileManager.default.temporaryDirectory.appendingPathComponent("\(UUID().uuidString).jsonl")
        try Data(content.utf8).write(to: file)
        return file
    }

    func testLinesBecomePythonsExamples() throws {
        for name in ["data", "mixed"] {
            let expected = try Dataset(), found = try Dataset()
            try expected.load(texts.appendingPathComponent("\(name).examples.jsonl"))
            let report = try found.read(texts.appendingPathComponent("\(name).jsonl"), bundle: bundle)
            let wanted = try String(contentsOf: texts.appendingPathComponent("\(name).shortened"), encoding: .utf8)
            XCTAssertEqual(report.shortened, UInt64(wanted))
            XCTAssertEqual([report.examples, try found.count], [try expected.count, try expected.count])
            XCTAssertEqual(try found.digest, try expected.digest)
        }
    }

    func testRowsAreThoseOfPython() throws {
        let found = try Dataset()
        try found.read(texts.appendingPathComponent("mixed.jsonl"), bundle: bundle, settings: ["pack": true])
        XCTAssertEqual(try found.digest, try String(contentsOf: texts.appendingPathComponent("mixed.packed"), encoding: .utf8))
    }

    func testBadLinesAreRefusedByNumber() throws {
        let good = #"{"text": "a warm film"}"#
        for line in [#"{"text": 3}"#, #"["a"]"#, "\(good) \(good)", #"{"prompt": "a"}"#, #"{"prompt": "a", "completion": ""}"#] {
            let file = try written("\(good)\n\n\(line)\n")
            let dataset = try Dataset()
            let error = assertFails(.data) { try dataset.read(file, bundle: bundle) }
            XCTAssertEqual(error?.where, "\(file.path):3")
            XCTAssertEqual(try dataset.count, 0)
        }
        let dataset = try Dataset()
        XCTAssertEqual(assertFails(.data) { try dataset.read(written(" \n\r\n"), bundle: bundle) }?.found, "no examples")
        assertFails(.data) { try dataset.read(written(good), bundle: bundle, settings: ["loss": "choices"]) }
        assertFails(.invalidArgument) { try dataset.read(written(good), bundle: bundle, settings: ["loss": "none"]) }
        assertFails(.data) { try dataset.read(texts.appendingPathComponent("nowhere.jsonl"), bundle: bundle) }
        assertFails(.bundle) { try dataset.read(written(good), bundle: texts) }
    }

    func testTypedExamplesAreADataFile() throws {
        let typed = [
            TypedExample(prompt: "say \"hi\"\n", completion: "hi"), TypedExample(prompt: "", completion: " é🦊"),
        ]
        let file = try written("")
        try TypedExample.write(typed, to: file)
        let lines = try String(contentsOf: file, encoding: .utf8)
        XCTAssertEqual(lines, """
            {"prompt":"say \\"hi\\"\\n","completion":"hi"}
            {"prompt":"","completion":" é🦊"}

            """)
        let dataset = try Dataset()
        try dataset.read(file, bundle: bundle)
        XCTAssertEqual(try dataset.count, 2)
    }

    /// Typed examples are those that Python makes of the lines of tests/support/text_cases.py.
    func testWhatIsTypedBecomesPythonsExamples() throws {
        let file = FileManager.default.temporaryDirectory.appendingPathComponent("\(UUID().uuidString) é.jsonl")
        var long = TypedExample.conversation
        XCTAssertTrue(long.isBlank)
        XCTAssertFalse(long.isComplete)
        long.addTurn()
        let said = ["Be brief.", "How was it?", "Warm, and funny. café 🦊", "And the \"sea\"?\n", " Blue."]
        for (index, text) in said.enumerated() { long.messages?[index].content = text }
        XCTAssertEqual(long.messages?.map(\.role), ["system", "user", "assistant", "user", "assistant"])
        var short = TypedExample.conversation
        short.messages?[1].content = "How was it?"
        XCTAssertFalse(short.isComplete)
        short.messages?[2].content = "so"
        XCTAssertTrue(short.isComplete && !short.isBlank)
        try TypedExample.write([TypedExample(prompt: "It was", completion: " warm"), long.typed], to: file)
        try TypedExample.write([short.typed], to: file, append: true)
        let expected = try Dataset(), found = try Dataset()
        try expected.load(texts.appendingPathComponent("typed.examples.jsonl"))
        try found.read(file, bundle: bundle)
        XCTAssertEqual(try found.count, 3)
        XCTAssertEqual(try found.digest, try expected.digest)

        let before = try Data(contentsOf: file)
        for (messages, what) in [
            ([], "'messages' that is empty"),
            ([Message(role: "user", content: "a")], "a last message from 'user'"),
            ([Message(role: "robot", content: "a")], "the role 'robot'"),
        ] {
            let error = assertFails(.data) {
                try TypedExample.write([TypedExample(messages: messages)], to: file, append: true)
            }
            XCTAssertEqual(error?.found, what)
        }
        assertFails(.data) { try TypedExample.write([TypedExample(prompt: "a")], to: file) }
        XCTAssertEqual(try Data(contentsOf: file), before)
        try TypedExample.write([], to: file)
        XCTAssertEqual(try Data(contentsOf: file), Data())
    }
}
