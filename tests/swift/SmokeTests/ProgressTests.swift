import Cases
import Foundation
import XCTest
import ZoSession

/// The run as an AsyncSequence, and slots that are written and read.
final class ProgressTests: XCTestCase {
    func testTheStreamIsTheRun() async throws {
        let test = try Case()
        let dataset = try test.examples()
        let session = try test.prepared(nil)
        var losses: [String] = []
        for try await step in session.steps(of: dataset, totalSteps: test.expected.steps) {
            losses.append(bits(Float(step.loss)))
        }
        XCTAssertEqual(losses, test.expected.records.map(\.loss))
        XCTAssertEqual(try session.info.steps, test.expected.steps)
    }

    func testWhoeverLeavesTheStreamPausesTheRun() async throws {
        let test = try Case()
        let dataset = try test.examples()
        let session = try test.prepared("streamed")
        for try await step in session.steps(of: dataset, totalSteps: 100_000) where step.step == 3 { break }
        try session.close()
        let reopened = try test.prepared("streamed")
        let reached = try reopened.info.steps
        // The reader was told of step 3 while others went on.
        XCTAssertTrue((3..<100_000).contains(reached), "\(reached)")
        for try await step in reopened.steps(of: dataset, totalSteps: reached + 2) {
            XCTAssertGreaterThan(step.step, reached)
        }
        XCTAssertEqual(try reopened.info.steps, reached + 2)
    }

    func testACancelledTaskEndsTheRun() async throws {
        let test = try Case()
        let dataset = try test.examples()
        let session = try test.prepared(nil)
        let task = Task {
            var count = 0
            for try await _ in session.steps(of: dataset, totalSteps: 100_000) { count += 1 }
            return count
        }
        try await Task.sleep(nanoseconds: 50_000_000)
        task.cancel()
        _ = try await task.value
        // Waits for the step that runs: it is the last.
        let steps = try session.info.steps
        XCTAssertLessThan(steps, 100_000)
        try await Task.sleep(nanoseconds: 50_000_000)
        XCTAssertEqual(try session.info.steps, steps)
    }

    func testTheStreamThrowsWhatTrainThrows() async throws {
        let test = try Case()
        let session = try test.prepared(nil)
        try session.configure(["learning_rate": 1e6, "lr_scheduler_type": "constant"])
        do {
            for try await _ in session.steps(of: try test.examples(), totalSteps: 200) {}
            XCTFail("no error")
        } catch let error as ZoError {
            XCTAssertEqual(error.kind, .diverged)
        }
    }

    func testSlotsAreWrittenAndRead() throws {
        let test = try Case()
        let session = try test.prepared(nil)
        let slot = try XCTUnwrap(try session.slots.first { $0.role == "trainable" })
        XCTAssertEqual(slot.dtype, .float32)
        let values = (0..<slot.elements).map { Float($0) / 7 - 3 }
        try session.writeSlot(slot.name, values)
        XCTAssertEqual(try session.readSlot(slot.name), values)
        XCTAssertEqual(try session.readSlot(slot.name, as: Int32.self), values.map { Int32(bitPattern: $0.bitPattern) })
        assertFails(.invalidArgument) { try session.readSlot(slot.name, as: Int8.self) }
        assertFails(.invalidArgument) { try session.writeSlot(slot.name, [Float(1)]) }
        assertFails(.invalidArgument) { try session.writeSlot(slot.name, [Int8](repeating: 0, count: slot.elements)) }
        assertFails(.invalidArgument) { try session.writeSlot(slot.name, [Float]()) }
        assertFails(.invalidArgument) { try session.readSlot("nothing", as: Int8.self) }
        _ = try session.step(try test.examples(), indices: [0])
        assertFails(.invalidArgument) { try session.writeSlot(slot.name, values) }
    }
}
