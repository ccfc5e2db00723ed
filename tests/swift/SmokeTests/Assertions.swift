import Cases
import Foundation
import XCTest
import ZoSession

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

/// The session evaluates as Python's did: loss, accuracy, accuracy of tokens, examples.
func assertEvaluation(
    _ wanted: [Double?], _ session: TrainingSession, _ dataset: Dataset, _ bounds: Expected.Bounds? = nil
) throws {
    let found = try session.evaluate(dataset)
    XCTAssertEqual([found.accuracy, found.tokenAccuracy, Double(found.examples)], Array(wanted.dropFirst()))
    XCTAssertLessThanOrEqual(abs(try XCTUnwrap(found.loss) / wanted[0]! - 1), bounds?.loss ?? 0)
}

/// The losses of a run's steps, as bits.
func assertLosses(_ found: [String], _ expected: Expected) {
    let wanted = expected.records.map(\.loss)
    guard let bounds = expected.bounds else { return XCTAssertEqual(found, wanted) }
    XCTAssertEqual(found.count, wanted.count)
    for (loss, other) in zip(found, wanted) {
        XCTAssertLessThanOrEqual(abs(Double(value(loss) / value(other)) - 1), bounds.loss)
    }
}

/// The run is over, and everything in it is what Python's run has.
func assertFinished(_ session: TrainingSession, _ expected: Expected) throws {
    XCTAssertEqual(try session.info.steps, expected.steps)
    for slot in expected.slots {
        assertValues(try session.readSlot(slot.name), slot.finished, expected.bounds)
        assertValues(try session.readSlot(slot.name, finished: false), slot.current, expected.bounds)
    }
    var losses: [String] = []
    for (index, wanted) in expected.records.enumerated() {
        let record = try session.record(UInt64(index))
        XCTAssertEqual(record.step, UInt64(index))
        XCTAssertEqual(bits(record.learningRate), wanted.learningRate)
        losses.append(bits(record.loss))
        XCTAssertEqual(record.gradients.count, wanted.gradients.count)
        if expected.bounds == nil {
            XCTAssertEqual(record.gradients.map(bits), wanted.gradients)
        }
    }
    assertLosses(losses, expected)
}

/// Values are these words, or within the bound of the norm of their difference.
func assertValues(_ found: [Float], _ wanted: [String], _ bounds: Expected.Bounds?) {
    guard let bounds else { return XCTAssertEqual(found.map { bits($0) }, wanted) }
    XCTAssertEqual(found.count, wanted.count)
    func norm(_ values: [Float]) -> Double { values.reduce(0) { $0 + Double($1) * Double($1) }.squareRoot() }
    let values = wanted.map(value)
    XCTAssertLessThanOrEqual(norm(zip(found, values).map(-)), bounds.state * norm(values))
}
