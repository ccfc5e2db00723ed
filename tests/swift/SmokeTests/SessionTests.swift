import Cases
import Foundation
import XCTest
import ZoSession

/// The Swift host on a real bundle, compared with what Python's host did.
final class SessionTests: XCTestCase {
    private var test: Case!
    private var expected: Expected { test.expected }

    override func setUpWithError() throws {
        test = try Case()
    }

    func testDescribesTheBundle() throws {
        let session = try test.open()
        let info = try session.info
        let known = expected.info
        XCTAssertEqual(info.bundleId, known.bundleId)
        XCTAssertEqual([info.method, info.target, info.engine], [known.method, known.target, known.engine])
        let steps = Int(expected.steps)
        XCTAssertEqual([info.rows, info.maxLength, info.copies, info.numQueries, info.maxLabels, steps], known.numbers)
        XCTAssertEqual(info.steps, 0)
        let settings = try session.settings
        XCTAssertEqual(settings["learning_rate"], expected.defaults["learning_rate"])
        XCTAssertEqual(settings["batch_size"], expected.defaults["batch_size"])
        XCTAssertEqual(settings["seed"]?.integer.map(String.init), expected.defaults["seed"]?.string)
        let slots = try session.slots
        XCTAssertEqual(slots.count, expected.slots.count)
        for (slot, wanted) in zip(slots, expected.slots) {
            XCTAssertEqual([slot.name, slot.role, slot.module], [wanted.name, wanted.role, wanted.module])
            XCTAssertEqual(slot.tensorId, wanted.tensorId)
            XCTAssertEqual(slot.shape, wanted.shape)
            XCTAssertEqual(slot.elements, slot.shape.reduce(1, *))
        }
    }

    func testSettingsPassByKey() throws {
        let session = try test.prepared(nil)
        XCTAssertEqual(try session.settings["seed"]?.integer, test.seed)
        try session.configure(["learning_rate": 0.25, "lr_scheduler_type": "constant", "gradient_accumulation_steps": 2])
        let settings = try session.settings
        let keys = ["learning_rate", "lr_scheduler_type", "gradient_accumulation_steps"]
        XCTAssertEqual(keys.map { settings[$0] }, [0.25, "constant", 2])
        XCTAssertEqual(settings["loss"]?.string, expected.settings["loss"]?.string)
        XCTAssertEqual(settings["seed"]?.integer, test.seed)
    }

    func testAnotherThreadCancels() throws {
        let dataset = try test.examples()
        let session = try test.prepared(nil)
        let error = assertFails(.cancelled) {
            try session.train(dataset, totalSteps: 1000) { progress in
                if progress.step == 2 {
                    let done = DispatchSemaphore(value: 0)
                    Thread.detachNewThread {
                        session.cancel()
                        done.signal()
                    }
                    done.wait()
                }
                return false
            }
        }
        XCTAssertEqual(error?.where, "step 2 of 1000")
        try session.close()
        session.cancel()
    }

    func testOpensOnlyWhatATrustedKeySigned() throws {
        let keys = [expected.other, expected.trusted]
        let session = try TrainingSession(bundle: test.bundle, trustedKeys: keys)
        XCTAssertEqual(try session.info.bundleId, expected.info.bundleId)
        let refused = assertFails(.bundle) {
            try TrainingSession(bundle: test.bundle, trustedKeys: [expected.other])
        }
        XCTAssertEqual(refused?.expected, "one by a trusted key")
        for keys in [[], ["nonsense"]] {
            assertFails(.invalidArgument) { try TrainingSession(bundle: test.bundle, trustedKeys: keys) }
        }
    }

    func testStepsOnChosenExamples() throws {
        let dataset = try test.examples()
        let session = try test.prepared(nil)
        let first = try session.step(dataset, indices: [4, 0, 4])
        let second = try session.step(dataset, indices: [2])
        XCTAssertEqual([first.step, second.step], [0, 1])
        XCTAssertEqual(first.losses.count, 2 * (try session.info.numQueries))
        XCTAssertEqual(first.loss, first.losses.reduce(0, +) / Double(first.losses.count), accuracy: 1e-12)
        let record = try session.record(0)
        XCTAssertEqual(record.gradients.map(bits), first.gradients.map(bits))
        XCTAssertEqual(bits(record.loss), bits(Float(first.loss)))
        let none = assertFails(.invalidArgument) { try session.step(dataset, indices: []) }
        XCTAssertEqual(none?.description, "indices: found none; expected at least one. Pass indices of examples.")
        assertFails(.invalidArgument) { try session.step(dataset, indices: [7]) }
        XCTAssertEqual(try session.info.steps, 2)
    }

    func testACallbacksErrorComesOutOfTrain() throws {
        struct Own: Error {}
        let dataset = try test.examples()
        let session = try test.prepared("thrown")
        XCTAssertThrowsError(try session.train(dataset, totalSteps: expected.steps) { _ in throw Own() }) {
            XCTAssertTrue($0 is Own)
        }
        XCTAssertEqual(try session.info.steps, 1)
        try session.close()
        let reader = try test.open()
        try reader.attach(test.states.appendingPathComponent("thrown"), readOnly: true)
        XCTAssertEqual(try reader.info.steps, 1)
        assertFails(.state) { try reader.save() }
    }

    func testExamplesOfTheHostAreCheckedAndCounted() throws {
        let dataset = try Dataset()
        let right = Candidate(tokens: [1, 2], labels: [-100, 3])
        try dataset.add([right])
        try dataset.add([right, Candidate(tokens: [1], labels: [2])], target: 1)
        assertFails(.data) { try dataset.add([right], target: 1) }
        assertFails(.data) { try dataset.add([right], target: .max) }
        assertFails(.data) { try dataset.add([]) }
        assertFails(.data) { try dataset.add([Candidate(tokens: [], labels: [])]) }
        assertFails(.data) { try dataset.add([Candidate(tokens: [1, 2], labels: [1])]) }
        let bad = assertFails(.data) { try dataset.load(test.folder.appendingPathComponent("bad.jsonl")) }
        XCTAssertEqual(bad?.where, expected.bad.where)
        XCTAssertEqual(bad?.found, expected.bad.found)
        XCTAssertEqual(bad?.expected, expected.bad.expected)
        XCTAssertEqual(bad?.fix, expected.bad.fix)
        XCTAssertEqual(try dataset.count, 2)
    }

    func testExamplesAddedOneByOneAreThoseOfAFile() throws {
        struct Line: Decodable {
            struct Candidate: Decodable {
                let tokens: [Int64]
                let labels: [Int64]
            }

            let candidates: [Candidate]
            let target: UInt
        }
        let dataset = try Dataset()
        let file = try String(contentsOf: test.folder.appendingPathComponent("examples.jsonl"), encoding: .utf8)
        for text in file.split(separator: "\n") {
            let line = try JSONDecoder().decode(Line.self, from: Data(text.utf8))
            try dataset.add(line.candidates.map { .init(tokens: $0.tokens, labels: $0.labels) }, target: line.target)
        }
        try assertEvaluation(expected.before, test.prepared(nil), dataset)
    }

    func testARunKeepsItsSettingsAndItsLog() throws {
        let dataset = try test.examples()
        let state = test.states.appendingPathComponent("kept")
        func attached(_ rate: Double?, recover: Bool = false, changeSettings: Bool = false) throws -> TrainingSession {
            let session = try test.open()
            try session.attach(state, recover: recover, changeSettings: changeSettings)
            if let rate { try session.configure(["learning_rate": Setting(rate), "lr_scheduler_type": "constant"]) }
            return session
        }
        let first = try attached(0.25)
        try first.train(dataset, totalSteps: 3)
        try first.close()
        let other = try attached(0.5)
        let refused = assertFails(.state) { try other.train(dataset, totalSteps: 4) }
        XCTAssertTrue(refused?.found.contains("learning_rate 0.25") == true)
        try other.close()
        let changed = try attached(0.5, changeSettings: true)
        try changed.train(dataset, totalSteps: 4)
        try changed.close()
        let log = state.appendingPathComponent("trajectory.log")
        var content = try Data(contentsOf: log)
        content[70] ^= 1
        try content.write(to: log)
        let damaged = assertFails(.state) { try attached(nil).close() }
        XCTAssertTrue(damaged?.found.contains("damage after 0 good records") == true)
        let recovered = try attached(nil, recover: true)
        XCTAssertEqual(try recovered.info.steps, 0)
        try recovered.close()
    }

    func testFailuresAreTypedAndSayWhere() throws {
        let dataset = try test.examples()
        let nowhere = URL(fileURLWithPath: "/no/such/bundle")
        let missing = assertFails(.bundle) { try TrainingSession(bundle: nowhere) }
        XCTAssertTrue(missing?.where.contains(nowhere.path) == true)
        let session = try test.prepared("held")
        let locked = assertFails(.state) { try test.open().attach(test.states.appendingPathComponent("held")) }
        XCTAssertTrue(locked?.where.contains(test.states.lastPathComponent) == true)
        assertFails(.state) { try session.configure(["seed": 1]) }
        for (key, value) in [("learning_rate", 0), ("learning_rate", Setting(Double.nan)), ("rate", 1)] {
            let refused = assertFails(.invalidArgument) { try session.configure([key: value]) }
            XCTAssertEqual(refused?.where, "setting '\(key)'")
        }
        XCTAssertEqual(assertFails(.invalidArgument) { try session.readSlot("nothing") }?.where, "slot nothing")
        assertFails(.invalidArgument) { try session.readSlot("\(try session.slots[0].name)\0") }
        assertFails(.invalidArgument) { try session.record(0) }
        try session.configure(["learning_rate": 1e6, "lr_scheduler_type": "constant"])
        let diverged = assertFails(.diverged) { try session.train(dataset, totalSteps: 200) }
        XCTAssertTrue(diverged?.fix.contains("Lower learning_rate") == true)

        let altered = test.states.appendingPathComponent("altered")
        try FileManager.default.copyItem(at: test.bundle, to: altered)
        defer { try? FileManager.default.removeItem(at: altered) }
        let names = try FileManager.default.contentsOfDirectory(atPath: altered.path)
        let program = altered.appendingPathComponent(names.first { $0.hasSuffix(".pte") }!)
        var content = try Data(contentsOf: program)
        content[content.count - 1] ^= 1
        try content.write(to: program)
        let changed = assertFails(.bundle) { try TrainingSession(bundle: altered).evaluate(dataset) }
        XCTAssertTrue(changed?.found.contains("altered content") == true)
        try Data(repeating: 7, count: content.count).write(to: program)
        assertFails(.engine) { try TrainingSession(bundle: altered, verify: false).evaluate(dataset) }
    }

    func testNoCallAfterCloseOrFromWithinACall() throws {
        let dataset = try test.examples()
        let session = try test.prepared(nil)
        let forbidden: [() throws -> Void] = [
            { _ = try session.info }, { try session.close() }, { _ = try dataset.count },
        ]
        for call in forbidden {
            let nested = assertFails(.invalidArgument) {
                try session.train(dataset, totalSteps: 100) { _ in
                    try call()
                    return false
                }
            }
            XCTAssertEqual(nested?.found, "a call from within a call")
        }
        try session.close()
        try session.close()
        XCTAssertEqual(assertFails(.invalidArgument) { try session.info }?.found, "a call after close")
        try dataset.close()
        try dataset.close()
        assertFails(.invalidArgument) { try dataset.count }
        assertFails(.invalidArgument) { try test.open().evaluate(dataset) }
    }

    func testCloseWaitsForTheCallThatRuns() throws {
        final class Count: @unchecked Sendable { var steps: UInt64 = 0 }
        let dataset = try test.examples()
        let session = try test.prepared(nil)
        let taken = Count()
        let began = DispatchSemaphore(value: 0)
        Thread.detachNewThread {
            try! session.train(dataset, totalSteps: 50) { progress in
                taken.steps = progress.step
                began.signal()
                return false
            }
        }
        began.wait()
        try session.close()
        XCTAssertEqual(taken.steps, 50)
    }

    func testTheLastReferenceReleasesTheState() throws {
        for _ in 0..<2 {
            XCTAssertEqual(try test.prepared("released").info.steps, 0)
        }
    }
}
