import Foundation
import XCTest
import ZoSession

/// What Python's host wrote into the case folder (tests/support/hosts.py), which `ZOEXPORT_CASE` names.
struct Case {
    let folder = Case.folder("ZOEXPORT_CASE")
    let expected: Expected

    init() throws {
        let decoder = JSONDecoder()
        decoder.keyDecodingStrategy = .convertFromSnakeCase
        expected = try decoder.decode(Expected.self, from: Data(contentsOf: folder.appendingPathComponent("expected.json")))
    }

    var bundle: URL { folder.appendingPathComponent("bundle") }
    var states: URL { Case.folder("ZOEXPORT_OUTPUT").appendingPathComponent(expected.states) }
    var seed: UInt64 { UInt64(expected.settings.seed)! }

    static func folder(_ variable: String) -> URL {
        URL(fileURLWithPath: ProcessInfo.processInfo.environment[variable]!)
    }

    func open() throws -> TrainingSession {
        try TrainingSession(bundle: bundle, threads: expected.threads)
    }

    func examples() throws -> Dataset {
        let dataset = try Dataset()
        try dataset.load(folder.appendingPathComponent("examples.jsonl"))
        return dataset
    }

    /// A session with the case's settings, with a state where one is named.
    func prepared(_ state: String?) throws -> TrainingSession {
        let session = try open()
        if let state {
            try session.attach(states.appendingPathComponent(state), seed: seed)
        }
        var run = try session.run
        run.lr = expected.settings.lr
        run.batch = expected.settings.batch
        run.seed = seed
        run.loss = expected.settings.loss == "choices" ? .choices : .full
        run.schedule = expected.settings.lrSchedule == "cosine" ? .cosine : .constant
        try session.configure(run)
        return session
    }
}

struct Expected: Decodable {
    struct Settings: Decodable {
        let lr: Double
        let loss: String
        let lrSchedule: String
        let batch: UInt32
        let seed: String
    }

    struct Defaults: Decodable {
        let batch: UInt32
        let lr: Double
        let seed: String
    }

    struct Info: Decodable {
        let bundleId: String
        let method: String
        let target: String
        let engine: String
        let numbers: [Int]
    }

    struct Slot: Decodable {
        let name: String
        let role: String
        let module: String
        let tensorId: UInt32
        let shape: [Int]
        let finished: [String]
        let current: [String]
    }

    struct Record: Decodable {
        let loss: String
        let lr: String
        let gradients: [String]
    }

    struct Failure: Decodable {
        let `where`: String
        let found: String
        let expected: String
        let fix: String
    }

    let threads: UInt32
    let steps: UInt64
    let states: String
    let settings: Settings
    let defaults: Defaults
    let info: Info
    let slots: [Slot]
    let records: [Record]
    let before: [Double?]
    let after: [Double?]
    let bad: Failure
}

/// The bits of a value as eight hexadecimal digits.
func bits(_ value: Float) -> String {
    hexadecimal(value.bitPattern)
}

func hexadecimal(_ word: UInt32) -> String {
    let digits = String(word, radix: 16)
    return String(repeating: "0", count: 8 - digits.count) + digits
}

/// The `ZoError` that `body` throws, of this kind.
@discardableResult
func assertFails<Result>(
    _ kind: ZoError.Kind, line: UInt = #line, _ body: () throws -> Result
) -> ZoError? {
    do {
        _ = try body()
        XCTFail("no error", line: line)
    } catch let error as ZoError {
        XCTAssertEqual(error.kind, kind, "\(error)", line: line)
        return error
    } catch {
        XCTFail("\(error)", line: line)
    }
    return nil
}
