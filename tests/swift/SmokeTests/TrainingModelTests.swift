import Cases
import Foundation
import XCTest
import ZoSession
import ZoTraining

/// The state of the screens, over real bundles.
@MainActor
final class TrainingModelTests: XCTestCase {
    /// The condition of the device, and an action when it is asked.
    private final class Device: @unchecked Sendable {
        private let lock = NSLock()
        private var told = ZoSession.Conditions()
        private var looks = 0
        private var action: (look: Int, body: @Sendable () -> Void)?

        var now: ZoSession.Conditions {
            get { lock.withLock { told } }
            set { lock.withLock { told = newValue } }
        }

        /// Runs `body` once, at the look of this number from now on, of which there is one a step.
        func at(_ look: Int, _ body: @escaping @Sendable () -> Void) {
            lock.withLock {
                looks = 0
                action = (look, body)
            }
        }

        func look() -> ZoSession.Conditions {
            let due: (@Sendable () -> Void)? = lock.withLock {
                looks += 1
                guard let planned = action, planned.look == looks else { return nil }
                action = nil
                return planned.body
            }
            due?()
            return now
        }
    }

    private let device = Device()
    private let texts = Case.file("ZOEXPORT_TEXTS")
    private let trajectories = Case.file("ZOEXPORT_TRAJECTORIES")
    private var places: Places!
    /// As tests/support/text_cases.py has it.
    private let steps: UInt64 = 250

    override func setUp() async throws {
        let root = Case.file("ZOEXPORT_OUTPUT").appendingPathComponent("app-\(UUID().uuidString)")
        places = Places(root: root, cache: root.appendingPathComponent("cache"))
        let files = FileManager.default
        for folder in [places.bundles, places.data] {
            try files.createDirectory(at: folder, withIntermediateDirectories: true)
        }
        for name in ["prge", "mebp", "mebp-mlx"] {
            try files.copyItem(
                at: trajectories.appendingPathComponent("\(name)/bundle"), to: places.bundles.appendingPathComponent(name)
            )
        }
        for name in ["data", "mixed"] {
            try files.copyItem(
                at: texts.appendingPathComponent("\(name).jsonl"), to: places.data.appendingPathComponent("\(name).jsonl")
            )
        }
    }

    private func model() throws -> TrainingModel {
        let device = device
        var environment = TrainingModel.Environment(
            places: places, conditions: { device.look() }, engine: { _ in nil }
        )
        environment.pollSeconds = 0.005
        return try TrainingModel(environment)
    }

    private func request(_ bundle: String = "prge", _ data: String = "data.jsonl", steps: UInt64? = nil) -> JobRequest {
        JobRequest(
            bundle: places.bundles.appendingPathComponent(bundle, isDirectory: true),
            data: places.data.appendingPathComponent(data), steps: steps ?? self.steps
        )
    }

    private func names(_ folder: URL) throws -> [String] {
        try FileManager.default.contentsOfDirectory(atPath: folder.path).sorted()
    }

    private var states: URL { places.root.appendingPathComponent("states") }

    private func log() throws -> Data {
        let found = try names(states)
        XCTAssertEqual(found.count, 1)
        return try Data(contentsOf: states.appendingPathComponent(found[0]).appendingPathComponent("trajectory.log"))
    }

    /// That of `zoexport train`.
    private func commandLines(_ method: String) throws -> Data {
        try Data(contentsOf: texts.appendingPathComponent("\(method)/trajectory.log"))
    }

    func testItTrainsToItsEndAsTheCommandLineDoes() async throws {
        let model = try model()
        XCTAssertEqual(model.screen.view.phase, .idle)
        model.start()  // nothing is chosen
        XCTAssertFalse(model.screen.canStart)
        model.choose(request())
        var phases: [Phase] = []
        model.onChange = { if phases.last != $0.view.phase { phases.append($0.view.phase) } }
        model.start()
        await model.finished()
        let screen = model.screen
        XCTAssertEqual(screen.view.phase, .done)
        XCTAssertEqual(phases.last, .done)
        XCTAssertTrue(phases.contains(.training), "\(phases)")
        XCTAssertEqual([screen.view.step, screen.losses.last?.step], [steps, steps])
        XCTAssertEqual([screen.view.examples, screen.view.shortened], [8, 0])
        XCTAssertEqual(screen.view.before?.examples, 8)
        XCTAssertNotNil(screen.view.after?.accuracy)
        XCTAssertEqual(try log(), try commandLines("prge"))
        XCTAssertEqual(try self.model().screen.view.phase, .done)
    }

    func testBackpropagationOverMlx() async throws {
        let model = try model()
        model.choose(request("mebp-mlx", steps: 3))
        model.start()
        await model.finished()
        XCTAssertEqual(model.screen.view.phase, .done)
        XCTAssertLessThan(try XCTUnwrap(model.screen.losses.last).loss, model.screen.losses[0].loss)
    }

    func testAPausedRunGoesOnAsTheSameRunInAnotherProcess() async throws {
        let first = try model()
        first.choose(request())
        device.at(20) { [weak first] in Task { @MainActor in first?.pause() } }
        first.start()
        await first.finished()
        XCTAssertEqual(first.screen.view.phase, .paused)
        XCTAssertEqual(first.screen.view.reason, .asked)
        let reached = first.screen.view.step
        XCTAssertTrue((1..<steps).contains(reached), "\(reached)")
        let second = try model()
        XCTAssertTrue(second.screen.canResume)
        XCTAssertEqual(second.screen.request, request())
        second.resume()
        await second.finished()
        XCTAssertEqual(second.screen.view.phase, .done)
        XCTAssertEqual(try log(), try commandLines("prge"))
    }

    func testCancelledItIsIdleAndDiscardForgets() async throws {
        let model = try model()
        model.choose(request(steps: 1_000_000))
        device.at(10) { [weak model] in Task { @MainActor in model?.cancel() } }
        model.start()
        await model.finished()
        XCTAssertEqual(model.screen.view.phase, .idle)
        XCTAssertFalse(try log().isEmpty)
        model.choose(request())
        model.start()
        await model.finished()
        model.discard()
        XCTAssertEqual(try names(states), [])
    }

    func testItWaitsWhileTheDeviceIsWarmOrFull() async throws {
        let model = try model()
        model.choose(request())
        let device = device
        device.at(20) { device.now = .init(heat: .serious) }
        var reasons: Set<Reason> = []
        model.onChange = { screen in
            guard screen.view.phase == .waiting else { return }
            reasons.insert(screen.view.reason)
            XCTAssertNotNil(screen.problem)
            switch screen.view.reason {
            case .heat: device.now = .init(heat: .fair, freeBytes: 1)
            case .disk: device.now = .init()
            default: XCTFail("\(screen.view.reason)")
            }
        }
        model.start()
        await model.finished()
        XCTAssertEqual(reasons, [.heat, .disk])
        XCTAssertEqual(try log(), try commandLines("prge"))
    }

    func testLittleMemoryAndTheBackgroundSaveAndPause() async throws {
        let model = try model()
        model.choose(request())
        let device = device
        device.at(20) { device.now = .init(memoryBytes: 1) }
        model.start()
        await model.finished()
        XCTAssertEqual(model.screen.view.reason, .memory)
        device.now = .init()
        device.at(10) { [weak model] in Task { @MainActor in model?.pause(.background) } }
        model.resume()
        await model.finished()
        XCTAssertEqual(model.screen.view.reason, .background)
        XCTAssertEqual(model.screen.view.phase, .paused)
    }

    func testOtherExamplesAreAQuestion() async throws {
        let model = try model()
        model.choose(request("mebp", steps: 3))
        model.start()
        await model.finished()
        model.choose(request("mebp", "mixed.jsonl", steps: 5))
        model.start()
        await model.finished()
        XCTAssertEqual(model.screen.question?.found, "3 steps on 8 other examples")
        XCTAssertNil(model.screen.problem)
        model.start(.goOn)
        await model.finished()
        XCTAssertEqual(model.screen.view.step, 5)
        model.choose(request("mebp", steps: 4))
        model.start(.anew)
        await model.finished()
        XCTAssertEqual([model.screen.view.step, model.screen.view.steps], [4, 4])
    }

    func testARequestKeepsItsSettings() async throws {
        let model = try model()
        let data = places.data.appendingPathComponent("data.jsonl")
        var request = JobRequest(
            bundle: places.bundles.appendingPathComponent("mebp", isDirectory: true), data: data, steps: 2,
            settings: ["learning_rate": 0.25, "lr_scheduler_type": "constant", "max_grad_norm": 1], heldOut: data
        )
        (request.evalEvery, request.patience, request.keep) = (1, 9, .last)
        model.choose(request)
        model.start()
        await model.finished()
        XCTAssertEqual(model.screen.view.phase, .done, "\(String(describing: model.screen.problem))")
        XCTAssertEqual(model.screen.view.evaluations.map(\.step), [0, 1, 2])
        XCTAssertEqual(try self.model().screen.request, request)
        let record = states.appendingPathComponent(try names(states)[0]).appendingPathComponent("run.json")
        let kept = try JSONDecoder().decode(Settings.self, from: Data(contentsOf: record))["settings"]?.value
        let settings = try XCTUnwrap(kept as? Settings)
        let keys = ["learning_rate", "max_grad_norm", "lr_scheduler_type"]
        XCTAssertEqual(keys.map { settings[$0] }, [0.25, 1, "constant"])
        request.settings = ["rate": 1]
        model.choose(request)
        model.start()
        await model.finished()
        XCTAssertEqual(model.screen.problem?.kind, .invalidArgument)
        XCTAssertEqual(model.screen.request, request)
    }

    func testBadBundlesBadDataAndBadStatesAreSaid() async throws {
        func refused(_ request: JobRequest) async throws -> ZoError.Kind? {
            let model = try model()
            model.choose(request)
            model.start()
            await model.finished()
            return model.screen.problem?.kind
        }
        let nowhere = try await refused(request("nowhere"))
        XCTAssertEqual(nowhere, .bundle)
        let noData = try await refused(request("prge", "nowhere.jsonl"))
        XCTAssertEqual(noData, .data)
        try Data("{}".utf8).write(to: places.data.appendingPathComponent("bad.jsonl"))
        let badData = try await refused(request("prge", "bad.jsonl"))
        XCTAssertEqual(badData, .data)
        XCTAssertFalse(FileManager.default.fileExists(atPath: states.path))
        let nothing = try await refused(request(steps: 3))
        XCTAssertNil(nothing)
        let state = states.appendingPathComponent(try names(states)[0])
        try Data("{".utf8).write(to: state.appendingPathComponent("state.json"))
        let badState = try await refused(request())
        XCTAssertEqual(badState, .state)
        try Data([1]).write(to: places.bundles.appendingPathComponent("prge/model.pte"))
        let badBundle = try await refused(request())
        XCTAssertEqual(badBundle, .bundle)
    }

    func testAPackedBundleIsImported() async throws {
        let packed = texts.appendingPathComponent("prge.zobundle")
        let named = places.root.appendingPathComponent("mine.zobundle")
        try FileManager.default.copyItem(at: packed, to: named)
        var last: (UInt64, UInt64) = (0, 1)
        for _ in 0..<2 {
            let folder = try places.importBundle(named) { done, total in
                last = (done, total)
                return false
            }
            XCTAssertEqual(folder.lastPathComponent, "mine")
        }
        XCTAssertEqual(last.0, last.1)
        assertFails(.cancelled) { try places.importBundle(named) { _, _ in true } }
        try Data(contentsOf: packed).prefix(5000).write(to: named)
        assertFails(.bundle) { try places.importBundle(named) }
        XCTAssertEqual(try names(places.bundles), ["mebp", "mebp-mlx", "mine", "prge"])
        let model = try model()
        model.choose(request("mine", steps: 2))
        model.start()
        await model.finished()
        XCTAssertEqual(model.screen.view.phase, .done)
    }

    /// tests/swift/test_swift.py compares the files with those that zoexport makes of the same state.
    func testTheAdapterLeavesAsPeftsFilesAndLlamaCpps() async throws {
        let model = try model()
        do {
            try await model.withSession { _ in }
            XCTFail("no error")
        } catch let error as ZoError { XCTAssertEqual(error.found, "no bundle") }
        model.choose(request("mebp", steps: 5))
        model.start()
        await model.finished()
        let output = Case.file("ZOEXPORT_OUTPUT").appendingPathComponent("exported")
        try FileManager.default.createDirectory(at: output, withIntermediateDirectories: true)
        let adapter = output.appendingPathComponent("adapter")
        try await model.withSession { try $0.exportAdapter(to: adapter) }
        try await model.withSession { try $0.exportAdapter(to: adapter, replace: true) }
        XCTAssertEqual(try names(adapter).count, 2)
        let gguf = output.appendingPathComponent("adapter.gguf")
        try await model.withSession { try $0.exportAdapter(to: gguf, format: .gguf, outtype: .f16) }
        XCTAssertEqual(try Data(contentsOf: gguf).prefix(4), Data("GGUF".utf8))
        try FileManager.default.copyItem(
            at: states.appendingPathComponent(try names(states)[0]), to: output.appendingPathComponent("state")
        )
        do {
            try await model.ask("The film")
            XCTFail("no error")
        } catch let error as ZoError { XCTAssertEqual(error.kind, .bundle) }  // compiled without programs that generate
        XCTAssertEqual(model.screen.talk, [])
        XCTAssertEqual(model.screen.progress.completed, 5)
        XCTAssertEqual(model.screen.progress.total, 5)
    }

    func testWhatIsCopiedIntoTheRootIsFound() async throws {
        let files = FileManager.default
        try files.moveItem(at: places.bundles.appendingPathComponent("mebp"), to: places.root.appendingPathComponent("mebp"))
        try files.createDirectory(at: places.root.appendingPathComponent("prge"), withIntermediateDirectories: true)
        try Data().write(to: places.root.appendingPathComponent("prge/manifest.json"))
        for name in ["more.jsonl", "note.txt"] { try Data("{}".utf8).write(to: places.root.appendingPathComponent(name)) }
        try places.tidy()
        XCTAssertEqual(try names(places.bundles), ["mebp", "mebp-mlx", "prge"])
        XCTAssertEqual(try names(places.data), ["data.jsonl", "mixed.jsonl", "more.jsonl"])
        // A name that is taken, and what is neither.
        XCTAssertEqual(try names(places.root), ["bundles", "data", "note.txt", "prge"])
    }
}
