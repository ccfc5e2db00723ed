import Cases
import Foundation
import XCTest
import ZoSession

/// Python's run of every case, again in Swift: P-RGE and MeBP, through ExecuTorch and MLX.
final class TrajectoryTests: XCTestCase {
    private func eachCase(_ body: (Case) throws -> Void) throws {
        for name in ["mebp", "mebp-mlx", "prge", "prge-mlx"] {
            try body(try Case(name))
        }
    }

    func testTrainsAsPythonDoes() throws {
        try eachCase { test in
            let expected = test.expected
            let dataset = try test.examples()
            let session = try test.prepared("whole")
            try assertEvaluation(expected.before, session, dataset, expected.bounds)
            var losses: [String] = []
            try session.train(dataset, totalSteps: expected.steps) { progress in
                losses.append(bits(Float(progress.loss)))
                XCTAssertEqual(progress.step, UInt64(losses.count))
                XCTAssertEqual(progress.total, expected.steps)
                XCTAssertGreaterThan(progress.rssBytes, progress.anonymousBytes)
                return false
            }
            try assertFinished(session, expected)
            assertLosses(losses, expected)
            try assertEvaluation(expected.after, session, dataset, expected.bounds)
            try session.close()
        }
    }

    func testCancelledAndReopenedItGoesOnAsTheSameRun() throws {
        try eachCase { test in
            let expected = test.expected
            let dataset = try test.examples()
            let session = try test.prepared("resumed")
            let error = assertFails(.cancelled) {
                try session.train(dataset, totalSteps: expected.steps) { $0.step == 3 }
            }
            XCTAssertEqual(error?.where, "step 3 of \(expected.steps)")
            XCTAssertEqual(error?.fix, "Train again with the same state to continue.")
            try session.close()

            let reopened = try test.prepared("resumed")
            XCTAssertEqual(try reopened.info.steps, 3)
            XCTAssertEqual(try reopened.info.seed, test.seed)
            try reopened.train(dataset, totalSteps: expected.steps)
            try reopened.save()
            try assertFinished(reopened, expected)
            try reopened.close()
        }
    }

    /// Killed within steps 2 and 4, after their records were written, and taken over by this process.
    func testKilledItGoesOnAsTheSameRun() throws {
        try eachCase { test in
            for step in ["2", "4"] {
                let trainer = Process()
                let output = Pipe()
                trainer.executableURL = Bundle.main.executableURL!.deletingLastPathComponent()
                    .appendingPathComponent("Trainer")
                trainer.arguments = [test.name, "killed", step]
                trainer.standardOutput = output
                try trainer.run()
                var said = ""
                while !said.hasSuffix("\(step)\n") {
                    let more = output.fileHandleForReading.availableData
                    guard !more.isEmpty else { return XCTFail("\(test.name) ended after \(said)") }
                    said += String(decoding: more, as: UTF8.self)
                }
                XCTAssertEqual(said, step == "2" ? "1\n2\n" : "3\n4\n")
                kill(trainer.processIdentifier, SIGKILL)
                trainer.waitUntilExit()
                XCTAssertEqual(trainer.terminationReason, .uncaughtSignal)
            }
            let session = try test.prepared("killed")
            XCTAssertEqual(try session.info.steps, 4)
            try session.train(try test.examples(), totalSteps: test.expected.steps)
            try assertFinished(session, test.expected)
            try session.close()
        }
    }

    /// `zoexport train` on the same examples; tests/swift/test_swift.py compares the states.
    func testLeavesTheStateOfTheCommandLine() throws {
        for name in ["prge", "mebp"] {
            let folder = Case.file("ZOEXPORT_OUTPUT").appendingPathComponent("cli").appendingPathComponent(name)
            let session = try TrainingSession(bundle: try Case(name).bundle)
            try session.attach(folder.appendingPathComponent("swift"))
            let dataset = try Dataset()
            try dataset.load(folder.appendingPathComponent("examples.jsonl"))
            try session.train(dataset, totalSteps: 6)
            try session.close()
        }
    }

    func testReplaysZerothOrderRecordsOnly() throws {
        for name in ["prge", "mebp"] {
            let test = try Case(name)
            let session = try test.prepared(nil)
            try session.train(try test.examples(), totalSteps: 4)
            let slot = try XCTUnwrap(try session.slots.first { $0.role == "trainable" })
            if name == "prge" {
                XCTAssertEqual(
                    try session.replaySlot(slot.name, updates: 4).map(bits), try session.readSlot(slot.name).map(bits)
                )
                XCTAssertEqual(
                    try session.replaySlot(slot.name, updates: 3).map(bits),
                    try session.readSlot(slot.name, finished: false).map(bits)
                )
            } else {
                assertFails(.invalidArgument) { try session.replaySlot(slot.name, updates: 4) }
            }
        }
    }
}
