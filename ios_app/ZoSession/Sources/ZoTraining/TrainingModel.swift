import Foundation
import ZoSession

/// Starts, pauses, resumes and cancels one run, and says what the screens show of it.
///
/// A paused run is closed and its state is on the disk, so that it makes no difference whether this process goes on with
/// it or another one. What takes long runs in other threads.
@MainActor
public final class TrainingModel {
    /// What only the app has.
    public struct Environment: Sendable {
        public var places: Places
        public var conditions: any DeviceConditions
        public var limits = Limits()
        /// The tokenizer of a bundle's folder.
        public var tokenizer: @Sendable (URL) async throws -> any Tokenizing
        /// What runs a bundle's programs; nil: the engine that its manifest names.
        public var engine: @Sendable (URL) async throws -> (any Engine)?

        public init(
            places: Places, conditions: any DeviceConditions,
            tokenizer: @escaping @Sendable (URL) async throws -> any Tokenizing,
            engine: @escaping @Sendable (URL) async throws -> (any Engine)?
        ) {
            self.places = places
            self.conditions = conditions
            self.tokenizer = tokenizer
            self.engine = engine
        }
    }

    public private(set) var view = TrainingView() {
        didSet { onChange?(view) }
    }

    /// Called after every change, on the main actor.
    public var onChange: ((TrainingView) -> Void)?

    private enum Stop: Equatable {
        case pause(TrainingView.Reason)
        case cancel
    }

    private let environment: Environment
    private let store: RunStore
    private var stop: Stop?
    private var session: TrainingSession?
    private var job: Task<Void, Never>?

    /// The run that another process left unfinished is there, paused.
    public init(_ environment: Environment) {
        self.environment = environment
        store = RunStore(environment.places)
        if let request = store.load() {
            view.request = request
            view.phase = .paused(.asked)
        }
    }

    /// Chooses what is to be trained; nothing while a run is under way.
    public func choose(_ request: RunRequest) {
        guard view.phase != .running else { return }
        view = TrainingView()
        view.request = request
    }

    /// Starts the chosen run, or goes on with it.
    public func start() {
        guard view.canStart, let request = view.request else { return }
        view.phase = .running
        stop = nil
        job = Task { await run(request) }
    }

    /// Ends the run after its step, saved.
    public func pause() {
        end(.pause(.asked))
    }

    /// Likewise, and nobody goes on with it; its state stays, and `start` would.
    public func cancel() {
        if case .paused = view.phase {
            store.remove()
            view.phase = .idle
        } else {
            end(.cancel)
        }
    }

    /// Writes the adapter as PEFT's two files into the folder `name` of `folder`, while no run is under way.
    ///
    /// - Returns: the folder that was written; one that was there is replaced.
    /// - Throws: `ZoError` of kind `state`: nothing was trained yet.
    public func exportAdapter(into folder: URL, name: String = "adapter") async throws -> URL {
        guard let request = view.request, view.phase != .running else {
            throw ZoError(
                .invalidArgument, where: "adapter", found: view.phase == .running ? "a run under way" : "no bundle",
                expected: "a run that is over or paused", fix: "Pause the run, or choose a bundle and data."
            )
        }
        let places = environment.places
        let bundle = places.bundles.appendingPathComponent(request.bundle, isDirectory: true)
        let engine = try await environment.engine(bundle)
        return try await Task.detached {
            let session = try TrainingSession(bundle: bundle, engine: engine)
            try session.attach(places.state(of: request, bundleID: session.info.bundleID), readOnly: true)
            let target = folder.appendingPathComponent(name, isDirectory: true)
            try session.exportAdapter(to: target, replace: true)
            return target
        }.value
    }

    /// Waits until no run is under way.
    public func finished() async {
        await job?.value
    }

    /// Looks at the device: a run waits where it is too warm or the disk is full, and goes on when that is over.
    /// The app calls this when the system says that something has changed, and the model after every step.
    public func conditionsChanged() {
        look()
        switch (view.phase, obstacle) {
        case (.running, .some(let reason)): end(.pause(reason))
        case (.paused(.heat), nil), (.paused(.disk), nil): start()
        default: break
        }
    }

    private func end(_ how: Stop) {
        guard view.phase == .running, stop == nil else { return }
        stop = how
        session?.cancel()
    }

    private var obstacle: TrainingView.Reason? {
        if view.heat >= environment.limits.heat { return .heat }
        if let free = environment.conditions.freeBytes(in: environment.places.root), free < environment.limits.freeBytes {
            return .disk
        }
        return nil
    }

    private func look() {
        view.heat = environment.conditions.heat
        view.memoryBytes = environment.conditions.memoryBytes
    }

    private func run(_ request: RunRequest) async {
        do {
            look()
            if obstacle == .disk { throw full() }
            try store.save(request)
            let prepared = try await Prepared.make(request, environment)
            session = prepared.session
            show(prepared)
            conditionsChanged()
            if stop == nil {
                try await train(prepared, request.totalSteps)
                stop = nil
            }
            try await close()
            finish()
        } catch {
            try? await close()
            if (error as? ZoError)?.kind == .cancelled, stop != nil {
                finish()
            } else {
                store.remove()
                view.phase = .failed((error as? Problem) ?? Problem(error))
            }
        }
    }

    private func train(_ prepared: Prepared, _ totalSteps: UInt64) async throws {
        for try await step in prepared.session.steps(of: prepared.dataset, totalSteps: totalSteps) {
            view.step = step.step
            view.points.append(.init(step: step.step, loss: step.loss))
            view.stepSeconds = step.seconds
            conditionsChanged()
            // Asked for before the run had begun, `cancel` did not reach it.
            if stop != nil { prepared.session.cancel() }
        }
    }

    /// Waits for the step that is being taken.
    private func close() async throws {
        guard let closing = session else { return }
        session = nil
        try await Task.detached { try closing.close() }.value
    }

    private func finish() {
        switch stop {
        case nil:
            store.remove()
            view.phase = .done
        case .cancel:
            store.remove()
            view.phase = .idle
        case .pause(let reason):
            view.phase = .paused(reason)
        }
    }

    private func show(_ prepared: Prepared) {
        view.method = prepared.info.method
        view.engine = prepared.info.engine
        view.examples = prepared.examples
        view.shortened = prepared.shortened
        view.step = prepared.info.steps
        view.points = prepared.points
    }

    private func full() -> Problem {
        Problem(.lowDisk, ZoError(
            .state, where: environment.places.root.path,
            found: "\((environment.conditions.freeBytes(in: environment.places.root) ?? 0) >> 20) MiB of room",
            expected: "at least \(environment.limits.freeBytes >> 20) MiB", fix: "Remove files or apps."
        ))
    }
}

/// An open session with its state and tokenized examples.
private struct Prepared: Sendable {
    let session: TrainingSession
    let dataset: Dataset
    let info: SessionInfo
    let examples: Int
    let shortened: Int
    let points: [TrainingView.Point]

    static func make(_ request: RunRequest, _ environment: TrainingModel.Environment) async throws -> Prepared {
        let places = environment.places
        let bundle = places.bundles.appendingPathComponent(request.bundle, isDirectory: true)
        let data = places.data.appendingPathComponent(request.data)
        let engine = try await environment.engine(bundle)
        let session = try await Task.detached {
            try TrainingSession(
                bundle: bundle, engine: engine, cache: places.cache.appendingPathComponent("packed").path
            )
        }.value
        let tokenizer = try await environment.tokenizer(bundle)
        return try await Task.detached {
            let read = try ExampleReader(tokenizer: tokenizer, seqLen: session.info.seqLen).read(data)
            let dataset = try Dataset()
            for example in read.examples { try dataset.add(example.candidates, target: UInt(example.target)) }
            try places.tidy()
            // The screen said which data and how many steps: others than before are meant, and the state keeps what changed.
            try session.attach(
                places.state(of: request, bundleID: session.info.bundleID), changeSettings: true
            )
            let info = try session.info
            let points = try (0..<info.steps).map { step in
                TrainingView.Point(step: step + 1, loss: Double(try session.record(step).loss))
            }
            return Prepared(
                session: session, dataset: dataset, info: info, examples: read.examples.count,
                shortened: read.shortened, points: points
            )
        }.value
    }
}
