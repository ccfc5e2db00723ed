import Cases
import Foundation
import XCTest
import ZoSession

@testable import ZoTraining

/// What the screens show, over a real bundle.
@MainActor
final class TrainingModelTests: XCTestCase {
    private final class Device: DeviceConditions, @unchecked Sendable {
        private let lock = NSLock()
        private var now: (heat: Heat, free: Int64?) = (.nominal, nil)

        func set(heat: Heat = .nominal, free: Int64? = nil) { lock.withLock { now = (heat, free) } }
        var heat: Heat { lock.withLock { now.heat } }
        var memoryBytes: UInt64 { 42 << 20 }
        func freeBytes(in folder: URL) -> Int64? { lock.withLock { now.free } }
    }

    private let device = Device()
    private var places: Places!
    private let steps: UInt64 = 200

    override func setUp() async throws {
        let root = Case.file("ZOEXPORT_OUTPUT").appendingPathComponent("app-\(UUID().uuidString)")
        places = Places(root: root, cache: root.appendingPathComponent("cache"))
        for folder in [places.bundles, places.data] {
            try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        }
        for (name, folder) in [("prge", "tiny"), ("mebp-mlx", "mlx")] {
            try FileManager.default.copyItem(at: try Case(name).bundle, to: places.bundles.appendingPathComponent(folder))
        }
        let lines = (0..<5).map { #"{"prompt": "number \#($0)", "completion": " yes", "choices": [" yes", " no"]}"# }
        try Data(lines.joined(separator: "\n").utf8).write(to: places.data.appendingPathComponent("words.jsonl"))
    }

    private func model() -> TrainingModel {
        TrainingModel(.init(places: places, conditions: device, tokenizer: { _ in ByteTokenizer() }, engine: { _ in nil }))
    }

    private func request(_ bundle: String = "tiny", _ data: String = "words.jsonl") -> RunRequest {
        RunRequest(bundle: bundle, data: data, totalSteps: steps)
    }

    private func names(_ folder: URL) throws -> [String] {
        try FileManager.default.contentsOfDirectory(atPath: folder.path).sorted()
    }

    private var log: Data {
        get throws {
            let states = try names(places.states)
            XCTAssertEqual(states.count, 1)
            return try Data(contentsOf: places.states.appendingPathComponent(states[0]).appendingPathComponent("trajectory.log"))
        }
    }

    /// The log of a run that nothing disturbs, in the same folders, which are as before afterwards if it is not kept.
    private func undisturbed(keeping: Bool = false) async throws -> Data {
        let model = model()
        model.choose(request())
        model.start()
        await model.finished()
        XCTAssertEqual(model.view.phase, .done)
        let content = try log
        if !keeping { try FileManager.default.removeItem(at: places.states) }
        return content
    }

    /// Runs `action` once, at this step.
    private func at(_ step: UInt64, of model: TrainingModel, _ action: @escaping () -> Void) {
        model.onChange = { view in
            if view.step >= step, view.phase == .running {
                model.onChange = nil
                action()
            }
        }
    }

    func testIdleRunningDone() async throws {
        let model = model()
        XCTAssertEqual(model.view.phase, .idle)
        XCTAssertFalse(model.view.canStart)
        model.start()
        XCTAssertEqual(model.view.phase, .idle)
        model.choose(request())
        XCTAssertTrue(model.view.canStart)
        var seen: [UInt64] = []
        let store = RunStore(places)
        model.onChange = { view in
            guard view.phase == .running, seen.last != view.step else { return }
            seen.append(view.step)
            // What another process would find.
            if view.step > 0 { XCTAssertEqual(store.load(), view.request) }
        }
        model.start()
        XCTAssertEqual(model.view.phase, .running)
        await model.finished()
        let view = model.view
        XCTAssertEqual(view.phase, .done)
        XCTAssertEqual(seen, Array(0...steps))
        XCTAssertEqual(view.points.map(\.step), Array(1...steps))
        XCTAssertEqual([view.method, view.engine], ["prge", "executorch"])
        XCTAssertEqual([view.examples, view.shortened], [5, 0])
        XCTAssertEqual(view.memoryBytes, 42 << 20)
        XCTAssertGreaterThan(try XCTUnwrap(view.stepSeconds), 0)
        XCTAssertNil(RunStore(places).load())
        // Another start finds the whole run and takes no further step.
        let before = try log
        model.start()
        await model.finished()
        XCTAssertEqual(model.view.points.count, Int(steps))
        XCTAssertEqual(try log, before)
    }

    func testBackpropagationOverMlx() async throws {
        let model = model()
        model.choose(RunRequest(bundle: "mlx", data: "words.jsonl", totalSteps: 3))
        model.start()
        await model.finished()
        XCTAssertEqual(model.view.phase, .done)
        XCTAssertEqual([model.view.method, model.view.engine], ["mebp", "mlx"])
        XCTAssertLessThan(try XCTUnwrap(model.view.points.last).loss, model.view.points[0].loss)
    }

    func testAPausedRunGoesOnAsTheSameRunInAnotherProcess() async throws {
        let whole = try await undisturbed()
        let first = model()
        first.choose(request())
        at(3, of: first) { first.pause() }
        first.start()
        await first.finished()
        XCTAssertEqual(first.view.phase, .paused(.asked))
        let reached = first.view.step
        XCTAssertTrue((3..<steps).contains(reached), "\(reached)")
        XCTAssertEqual(first.view.points.count, Int(reached))
        XCTAssertEqual(UInt64(try log.count), 64 + (20 + 8) * reached)

        let second = model()
        XCTAssertEqual(second.view.phase, .paused(.asked))
        XCTAssertEqual(second.view.request, request())
        second.start()
        await second.finished()
        XCTAssertEqual(second.view.phase, .done)
        XCTAssertEqual(second.view.points.count, Int(steps))
        XCTAssertEqual(try log, whole)
    }

    func testACancelledRunIsOver() async throws {
        let model = model()
        model.choose(request())
        at(2, of: model) { model.cancel() }
        model.start()
        await model.finished()
        XCTAssertEqual(model.view.phase, .idle)
        XCTAssertLessThan(model.view.step, steps)
        XCTAssertNil(RunStore(places).load())
        XCTAssertFalse(try log.isEmpty)
        // Asked for at once, before the run has begun.
        model.start()
        model.pause()
        await model.finished()
        XCTAssertEqual(model.view.phase, .paused(.asked))
        model.cancel()
        XCTAssertEqual(model.view.phase, .idle)
        XCTAssertNil(RunStore(places).load())
    }

    func testItWaitsWhileTheDeviceIsTooWarm() async throws {
        let whole = try await undisturbed()
        let model = model()
        model.choose(request())
        let device = device
        at(2, of: model) { device.set(heat: .serious) }
        model.start()
        await model.finished()
        XCTAssertEqual(model.view.phase, .paused(.heat))
        XCTAssertEqual(model.view.heat, .serious)
        model.conditionsChanged()
        XCTAssertEqual(model.view.phase, .paused(.heat))
        device.set(heat: .fair)
        model.conditionsChanged()
        XCTAssertEqual(model.view.phase, .running)
        await model.finished()
        XCTAssertEqual(model.view.phase, .done)
        XCTAssertEqual(try log, whole)
    }

    func testItWaitsForRoomOnTheDisk() async throws {
        device.set(free: 1 << 20)
        let model = model()
        model.choose(request())
        model.start()
        await model.finished()
        guard case .failed(let problem) = model.view.phase else { return XCTFail("\(model.view.phase)") }
        XCTAssertEqual(problem.kind, .lowDisk)
        XCTAssertEqual(problem.error.found, "1 MiB of room")
        XCTAssertFalse(FileManager.default.fileExists(atPath: places.states.path))

        device.set(free: 1 << 40)
        let device = device
        at(2, of: model) { device.set(free: 1 << 20) }
        model.start()
        await model.finished()
        XCTAssertEqual(model.view.phase, .paused(.disk))
        device.set(free: 1 << 40)
        model.conditionsChanged()
        await model.finished()
        XCTAssertEqual(model.view.phase, .done)
    }

    func testBadBundlesBadDataAndBadStates() async throws {
        func failed(_ request: RunRequest) async -> Problem.Kind? {
            let model = model()
            model.choose(request)
            model.start()
            await model.finished()
            XCTAssertNil(RunStore(places).load())
            if case .failed(let problem) = model.view.phase { return problem.kind }
            XCTFail("\(model.view.phase)")
            return nil
        }
        let nowhere = await failed(request("nowhere"))
        XCTAssertEqual(nowhere, .badBundle)
        let noData = await failed(request("tiny", "nowhere.jsonl"))
        XCTAssertEqual(noData, .badData)
        try Data("{}".utf8).write(to: places.data.appendingPathComponent("bad.jsonl"))
        let badData = await failed(request("tiny", "bad.jsonl"))
        XCTAssertEqual(badData, .badData)
        let log = try await undisturbed(keeping: true)
        let state = places.states.appendingPathComponent(try names(places.states)[0])
        try Data("{".utf8).write(to: state.appendingPathComponent("state.json"))
        let badState = await failed(request())
        XCTAssertEqual(badState, .badState)
        XCTAssertEqual(try self.log, log)
        let program = places.bundles.appendingPathComponent("tiny").appendingPathComponent("model.pte")
        try Data([1]).write(to: program)
        let badBundle = await failed(request())
        XCTAssertEqual(badBundle, .badBundle)
    }

    func testWhatIsCopiedIntoTheRootIsFound() async throws {
        let files = FileManager.default
        try files.moveItem(at: places.bundles.appendingPathComponent("mlx"), to: places.root.appendingPathComponent("mlx"))
        try files.createDirectory(at: places.root.appendingPathComponent("tiny"), withIntermediateDirectories: true)
        try Data().write(to: places.root.appendingPathComponent("tiny/manifest.json"))
        for name in ["more.jsonl", "note.txt"] { try Data("{}".utf8).write(to: places.root.appendingPathComponent(name)) }
        try places.tidy()
        XCTAssertEqual(try names(places.bundles), ["mlx", "tiny"])
        XCTAssertEqual(try names(places.data), ["more.jsonl", "words.jsonl"])
        // A name that is taken, and what is neither.
        XCTAssertEqual(try names(places.root), ["bundles", "data", "note.txt", "states", "tiny"])
        XCTAssertGreaterThan(try names(places.bundles.appendingPathComponent("tiny")).count, 3)
    }

    /// tests/swift/test_swift.py compares the files with those that zoexport makes of the same state.
    func testTheAdapterLeavesAsPeftsFiles() async throws {
        let model = model()
        do {
            _ = try await model.exportAdapter(into: places.root)
            XCTFail("no error")
        } catch let error as ZoError { XCTAssertEqual(error.found, "no bundle") }
        model.choose(request())
        do {
            _ = try await model.exportAdapter(into: places.root)
            XCTFail("no error")
        } catch let error as ZoError { XCTAssertEqual(error.kind, .state) }
        model.start()
        await model.finished()
        let output = Case.file("ZOEXPORT_OUTPUT").appendingPathComponent("exported")
        for _ in 0..<2 {
            let folder = try await model.exportAdapter(into: output)
            XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: folder.path).count, 2)
        }
        let states = try FileManager.default.contentsOfDirectory(atPath: places.states.path)
        try FileManager.default.copyItem(
            at: places.states.appendingPathComponent(states[0]), to: output.appendingPathComponent("state")
        )
    }
}
