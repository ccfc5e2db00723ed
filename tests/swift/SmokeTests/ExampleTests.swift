import Cases
import Foundation
import XCTest
import ZoSession
import ZoTraining

/// Lines become the examples that Python makes of them, by the tokenizer of tests/support/byte_tokens.py.
final class ExampleTests: XCTestCase {
    private struct Wanted: Decodable {
        struct Candidate: Decodable {
            let tokens: [Int64]
            let labels: [Int64]
        }

        struct Example: Decodable {
            let candidates: [Candidate]
            let target: Int
        }

        let seq_len: Int
        let examples: [Example]
        let shortened: Int
        let bad: Int
    }

    private let folder = Case.file("ZOEXPORT_EXAMPLES")

    private func wanted() throws -> (Wanted, ExampleReader) {
        let file = folder.appendingPathComponent("examples.json")
        let wanted = try JSONDecoder().decode(Wanted.self, from: Data(contentsOf: file))
        return (wanted, ExampleReader(tokenizer: ByteTokenizer(), seqLen: wanted.seq_len))
    }

    func testLinesBecomePythonsExamples() throws {
        let (wanted, reader) = try wanted()
        let found = try reader.read(folder.appendingPathComponent("good.jsonl"))
        XCTAssertEqual(found.shortened, wanted.shortened)
        XCTAssertEqual(found.examples.map(\.target), wanted.examples.map(\.target))
        XCTAssertEqual(found.examples.map { $0.candidates.map(\.tokens) }, wanted.examples.map { $0.candidates.map(\.tokens) })
        XCTAssertEqual(found.examples.map { $0.candidates.map(\.labels) }, wanted.examples.map { $0.candidates.map(\.labels) })
    }

    func testBadLinesAreRefusedByNumber() throws {
        let (wanted, reader) = try wanted()
        XCTAssertGreaterThan(wanted.bad, 10)
        for number in 0..<wanted.bad {
            let error = assertFails(.data) { try reader.read(folder.appendingPathComponent("bad-\(number).jsonl")) }
            XCTAssertEqual(error?.where, "bad-\(number).jsonl:1")
        }
        assertFails(.data) { try reader.read(folder.appendingPathComponent("nowhere.jsonl")) }
        let empty = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        defer { try? FileManager.default.removeItem(at: empty) }
        try Data(" \n\r\n".utf8).write(to: empty)
        XCTAssertEqual(assertFails(.data) { try reader.read(empty) }?.found, "no examples")
    }

    func testTypedExamplesAreADataFile() throws {
        var typed = [TypedExample(), TypedExample(), TypedExample()]
        typed[0].prompt = "say \"hi\"\n"
        typed[0].completion = "hi"
        typed[1].prompt = "not complete"
        typed[2].completion = "alone"
        XCTAssertEqual(typed.map(\.isComplete), [true, false, true])
        let file = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        defer { try? FileManager.default.removeItem(at: file) }
        try TypedExample.lines(typed).write(to: file)
        let examples = try ExampleReader(tokenizer: ByteTokenizer(), seqLen: 32).read(file).examples
        XCTAssertEqual(examples.map { $0.candidates[0].tokens }, [
            ([0] + "say \"hi\"\nhi".utf8.map { Int64($0) + 1 }), [0] + "alone".utf8.map { Int64($0) + 1 },
        ])
    }
}

struct ByteTokenizer: Tokenizing {
    func encode(_ text: String, special: Bool) -> [Int] {
        (special ? [0] : []) + text.utf8.map { Int($0) + 1 }
    }

    func encode(_ messages: [[String: String]], prompting: Bool) -> [Int] {
        let turns = messages.map { "<\($0["role"]!)>\($0["content"]!);" }.joined()
        return encode(turns + (prompting ? "<assistant>" : ""), special: false)
    }
}
