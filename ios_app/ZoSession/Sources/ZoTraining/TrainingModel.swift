import Foundation
import ZoSession

/// A question, and what the model answers with what was trained and without it.
public struct Exchange: Identifiable, Equatable, Sendable {
    public let id = UUID()
    public let question: String
    public let trained: String
    public let untrained: String
}

/// What the screens show.
public struct TrainingScreen: Sendable {
    public internal(set) var view: JobView
    public internal(set) var losses: [LossPoint] = []
    public internal(set) var evaluations: [StepEvaluation] = []
    public internal(set) var request: JobRequest?
    /// Why the job failed, waits or is paused, or why a start was refused.
    public internal(set) var problem: ZoError?
    /// What a start asked: it is to be called again with an answer.
    public internal(set) var question: ZoError?
    /// What was asked and answered.
    public internal(set) var talk: [Exchange] = []

    public var isActive: Bool {
        switch view.phase {
        case .preparing, .evaluating, .training, .waiting: true
        case .idle, .paused, .failed, .done: false
        }
    }

    public var canStart: Bool { request != nil && !isActive }
    public var canResume: Bool { view.phase == .paused }
}

/// The one job of the app: what the screens show and what their buttons do. All rules are the session's (docs/jobs.md); what
/// takes long runs in other threads.
@MainActor
public final class TrainingModel {
    /// What only the app has.
    public struct Environment: Sendable {
        public var places: Places
        public var conditions: @Sendable () -> Conditions
        /// What runs a bundle's programs; nil: the engine that its manifest names.
        public var engine: @Sendable (URL) async throws -> (any Engine)?
        /// Public keys of which one must have signed a bundle; nil: any bundle.
        public var trustedKeys: [String]?
        public var pollSeconds = 30.0

        public init(
            places: Places, conditions: @escaping @Sendable () -> Conditions,
            engine: @escaping @Sendable (URL) async throws -> (any Engine)?
        ) {
            self.places = places
            self.conditions = conditions
            self.engine = engine
        }

        var packed: String { places.cache.appendingPathComponent("packed").path }
    }

    public private(set) var screen: TrainingScreen {
        didSet { onChange?(screen) }
    }

    /// Called after every change, on the main actor.
    public var onChange: ((TrainingScreen) -> Void)?

    private let environment: Environment
    private let job: TrainingJob
    private var work: Task<Void, Never>?

    /// - Throws: `ZoError`: the job's folder cannot be made.
    public init(_ environment: Environment) throws {
        self.environment = environment
        job = try TrainingJob(folder: environment.places.root)
        screen = TrainingScreen(view: try job.view, evaluations: try job.evaluations, request: try job.request)
    }

    /// Chooses what is to be trained; nothing while a run is under way.
    public func choose(_ request: JobRequest) {
        guard !screen.isActive else { return }
        screen.request = request
        screen.problem = nil
        screen.question = nil
        screen.talk = []
    }

    /// Starts what was chosen. What is refused or asked is on the screen.
    public func start(_ answer: Answer = .ask) {
        guard screen.canStart, let request = screen.request else { return }
        let job = job, environment = environment
        begin { model in
            do {
                let engine = try await environment.engine(request.bundle)
                try await Task.detached {
                    try job.start(
                        request, answer: answer, engine: engine, cache: environment.packed,
                        trustedKeys: environment.trustedKeys
                    )
                }.value
            } catch let error as ZoError where error.kind == .question {
                model.screen.question = error
                return
            } catch {
                model.screen.problem = told(error)
                return
            }
            await model.run(request)
        }
    }

    /// Goes on with a run that is paused, also one of another process.
    public func resume() {
        guard screen.canResume, let request = try? job.request else { return }
        begin { await $0.run(request) }
    }

    /// Ends the run after its step, saved.
    public func pause(_ reason: Reason = .asked) {
        job.pause(reason)
    }

    /// Likewise, and nobody goes on with it; its state stays.
    public func cancel() {
        try? job.cancel()
        refresh()
    }

    /// Removes what was trained with the bundle. Only while nothing runs.
    public func discard() {
        guard !screen.isActive else { return }
        do { try job.discard() } catch { screen.problem = told(error) }
        screen.talk = []
        refresh()
    }

    /// Waits until no run is under way.
    public func finished() async {
        await work?.value
    }

    /// Asks the model with what was trained, and without it. Where it has a chat template, what was asked before comes first, each
    /// time with the answers of the same side; else a question stands alone.
    ///
    /// - Parameter onText: gets the answers piece by piece, the trained one first; true ends the one that the piece is of.
    public func ask(
        _ question: String, maxTokens: UInt32 = 256, onText: (@Sendable (_ trained: Bool, String) -> Bool)? = nil
    ) async throws {
        let before = screen.talk
        let exchange = try await withSession { session in
            func answer(_ trained: Bool) throws -> String {
                var options = GenerateOptions()
                options.maxTokens = maxTokens
                options.untrained = !trained
                let listener = { (piece: String) in onText?(trained, piece) ?? false }
                let turns = before.flatMap {
                    [
                        Message(role: "user", content: $0.question),
                        Message(role: "assistant", content: trained ? $0.trained : $0.untrained),
                    ]
                }
                do {
                    let asked = turns + [Message(role: "user", content: question)]
                    return try session.generate(messages: asked, options: options, onText: listener).text
                } catch let error as ZoError where error.kind == .bundle && error.where == "chat" {
                    // No chat template.
                    return try session.generate(question, options: options, onText: listener).text
                }
            }
            return Exchange(question: question, trained: try answer(true), untrained: try answer(false))
        }
        screen.talk = before + [exchange]
    }

    /// Begins a new conversation.
    public func hush() {
        screen.talk = []
    }

    /// What `action` makes of the bundle with what was trained so far.
    public func withSession<Result: Sendable>(
        _ action: @escaping @Sendable (TrainingSession) throws -> Result
    ) async throws -> Result {
        let job = job, environment = environment
        let bundle = try job.request?.bundle ?? environment.places.bundles
        let engine = try await environment.engine(bundle)
        return try await Task.detached {
            let session = try job.session(
                engine: engine, cache: environment.packed, trustedKeys: environment.trustedKeys
            )
            defer { try? session.close() }
            return try action(session)
        }.value
    }

    private func begin(_ action: @escaping @MainActor (TrainingModel) async -> Void) {
        screen.problem = nil
        screen.question = nil
        let before = work
        work = Task {
            await before?.value
            await action(self)
        }
    }

    private func run(_ request: JobRequest) async {
        let job = job, environment = environment
        do {
            let engine = try await environment.engine(request.bundle)
            try await Task.detached { [weak self] in
                try job.run(
                    engine: engine, cache: environment.packed, trustedKeys: environment.trustedKeys,
                    pollSeconds: environment.pollSeconds, conditions: environment.conditions,
                    changed: { Task { @MainActor in self?.refresh() } }
                )
            }.value
            refresh()
        } catch {
            refresh()
            screen.problem = told(error)
        }
    }

    private func refresh() {
        guard let view = try? job.view else { return }
        var shown = screen
        shown.view = view
        shown.losses = (try? job.losses) ?? []
        shown.evaluations = (try? job.evaluations) ?? []
        shown.problem = job.problem
        if let request = try? job.request { shown.request = request }
        screen = shown
    }
}

/// Any failure in the four parts of a `ZoError`.
private func told(_ error: any Error) -> ZoError {
    (error as? ZoError) ?? ZoError(
        .internal, where: "training", found: error.localizedDescription, expected: "a run without errors",
        fix: "Start it again."
    )
}
