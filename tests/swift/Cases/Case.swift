import Foundation
import ZoSession

/// A case folder that Python's host wrote (tests/support/hosts.py). `ZOEXPORT_CASES` has those folders by name.
package struct Case {
    package let name: String
    package let folder: URL
    package let expected: Expected

    package init(_ name: String = "prge") throws {
        self.name = name
        folder = URL(fileURLWithPath: Case.folders[name]!)
        let decoder = JSONDecoder()
        decoder.keyDecodingStrategy = .convertFromSnakeCase
        expected = try decoder.decode(Expected.self, from: Data(contentsOf: folder.appendingPathComponent("expected.json")))
    }

    package var bundle: URL { folder.appendingPathComponent("bundle") }
    /// The seed of the case, which is beyond Int64.
    package var seed: UInt64 { UInt64(expected.settings["seed"]!.string!)! }
    /// The folder of this case's states.
    package var states: URL {
        Case.file("ZOEXPORT_OUTPUT").appendingPathComponent(name).appendingPathComponent(expected.states)
    }

    package static func file(_ variable: String) -> URL {
        URL(fileURLWithPath: text(variable))
    }

    private static func text(_ variable: String) -> String {
        ProcessInfo.processInfo.environment[variable]!
    }

    private static var folders: [String: String] {
        try! JSONDecoder().decode([String: String].self, from: Data(text("ZOEXPORT_CASES").utf8))
    }

    package func open(engine: (any Engine)? = nil) throws -> TrainingSession {
        try TrainingSession(bundle: bundle, threads: expected.threads, engine: engine)
    }

    package func examples() throws -> Dataset {
        let dataset = try Dataset()
        try dataset.load(folder.appendingPathComponent("examples.jsonl"))
        return dataset
    }

    /// A session with the case's settings, with a state where one is named.
    package func prepared(_ state: String?, engine: (any Engine)? = nil) throws -> TrainingSession {
        let session = try open(engine: engine)
        if let state {
            try session.attach(states.appendingPathComponent(state), seed: seed)
        }
        try session.configure(expected.settings.merging(["seed": Setting(seed)]) { $1 })
        return session
    }
}

package struct Expected: Decodable {
    package struct Info: Decodable {
        package let bundleId: String
        package let method: String
        package let target: String
        package let engine: String
        package let numbers: [Int]
    }

    /// Relative errors: of a loss, and of the norm of a slot.
    package struct Bounds: Decodable {
        package let loss: Double
        package let state: Double
    }

    package struct Slot: Decodable {
        package let name: String
        package let role: String
        package let module: String
        package let tensorId: UInt32
        package let shape: [Int]
        package let finished: [String]
        package let current: [String]
    }

    package struct Record: Decodable {
        package let loss: String
        package let learningRate: String
        package let gradients: [String]
    }

    package struct Failure: Decodable {
        package let `where`: String
        package let found: String
        package let expected: String
        package let fix: String
    }

    package let threads: Int
    package let steps: UInt64
    package let states: String
    package let settings: Settings
    package let defaults: Settings
    package let trusted: String
    package let other: String
    package let info: Info
    /// nil where the bits are the same.
    package let bounds: Bounds?
    package let slots: [Slot]
    package let records: [Record]
    package let before: [Double?]
    package let after: [Double?]
    package let bad: Failure
}

/// The bits of a value as eight hexadecimal digits.
package func bits(_ value: Float) -> String {
    hexadecimal(value.bitPattern)
}

/// The value of those digits.
package func value(_ bits: String) -> Float {
    Float(bitPattern: UInt32(bits, radix: 16)!)
}

package func hexadecimal(_ word: UInt32) -> String {
    let digits = String(word, radix: 16)
    return String(repeating: "0", count: 8 - digits.count) + digits
}
