import Foundation
import ZoSession

/// A question, and the answers of the model with what was trained and without it.
public struct Exchange: Identifiable, Equatable, Sendable {
    public let id = UUID()
    public let question: String
    public let trained: String
    public let untrained: String
}

/// The state of the app for its screens.
public struct TrainingScreen: Sendable {
    public internal(set) var view: JobView
    public internal(set) var losses: [LossPoint] = []
    public internal(set) var request: JobRequest?
    /// Why the job failed, waits or is paused, or why a start was refused.
    public internal(set) var problem: ZoError?
    /// The question of a start, which is to be called again with an answer.
    public internal(set) var question: ZoError?
    /// Questions and their answers so far.
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

/// The one job of the app: the state of the screens and the actions of their buttons.
///
/// All rules are the session's (docs/iphone.md). Long calls run in other threads.
@MainActor
public final class TrainingModel {
    /// The part that differs by app.
    public struct Environment: Sendable {
        public var places: Places
        public var conditions: @Sendable () -> Conditions
        /// Makes the engine that runs a bundle's programs; nil: the engine that its manifest names.
        public var engine: @Sendable (URL) async throws -> (any Engine)?
        /// Public keys; one of them must have signed a bundle; nil: any bundle.
        public var trustedKeys: [String]?
        public var pollSeconds: Double?

        public init(
            places: Places, conditions: @escaping @Sendable () -> Conditions,
            engine: @escaping @Sendable (URL) async throws -> (any Engine)?
        ) {
            self.places = places
            self.conditions = conditions
            self.engine = engine
        }

        func job(_ engine: (any Engine)? = nil) throws -> TrainingJob {
            let cache = places.cache.appendingPathComponent("shaders").path
            return try TrainingJob(folder: places.root, engine: engine, cache: cache, trustedKeys: trustedKeys)
        }
    }

    public private(set) var screen: TrainingScreen {
        didSet { onChange?(screen) }
    }

    /// Called after every change, on the main actor.
    public var onChange: ((TrainingScreen) -> Void)?

    private let environment: Environment
    /// The job of the last run, as each opens it with the engine of its bundle.
    private var job: TrainingJob
    private var work: Task<Void, Never>?

    /// - Throws: `ZoError`: the job's folder cannot be made.
    public init(_ environment: Environment) throws {
        self.environment = environment
        job = try environment.job()
        screen = TrainingScreen(view: try job.view, request: try job.request)
    }

    /// Chooses what to train. Does nothing during a run.
    public func choose(_ request: JobRequest) {
        guard !screen.isActive else { return }
        screen.request = request
        screen.problem = nil
        screen.question = nil
        screen.talk = []
    }

    /// Starts the chosen request. A refusal or a question is on the screen.
    public func start(_ answer: Answer = .ask) {
        guard screen.canStart, let request = screen.request else { return }
        begin(request.bundle) { try $0.start(request, answer: answer) }
    }

    /// Continues a run that is paused, also one of another process.
    public func resume() {
        guard screen.canResume, let request = try? job.request else { return }
        begin(request.bundle) { _ in }
    }

    /// Ends the run after its step, saved.
    public func pause(_ reason: Reason = .asked) {
        job.pause(reason)
    }

    /// Ends the run and drops its request; its state stays.
    public func cancel() {
        try? job.cancel()
        refresh()
    }

    /// Removes what was trained with the bundle. Does nothing during a run.
    public func discard() {
        guard !screen.isActive else { return }
        do { try job.discard() } catch { screen.problem = told(error) }
        screen.talk = []
        refresh()
    }

    /// Waits for the end of the run.
    public func finished() async {
        await work?.value
    }

    /// Asks the model with what was trained, and without it. With a chat template, the questions before come first, each time
    /// with the answers of the same side; without one, a question stands alone.
    ///
    /// - Parameter onText: gets the answers piece by piece, the trained one first; true ends the answer.
    public func ask(
        _ question: String, maxNewTokens: UInt32 = 256, onText: (@Sendable (_ trained: Bool, String) -> Bool)? = nil
    ) async throws {
        let before = screen.talk
        let exchange = try await withSession { session in
            func answer(_ trained: Bool) throws -> String {
                var options = GenerateOptions()
                options.maxNewTokens = maxNewTokens
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

    /// Runs `action` on the bundle with what was trained so far.
    public func withSession<Result: Sendable>(
        _ action: @escaping @Sendable (TrainingSession) throws -> Result
    ) async throws -> Result {
        let engine = try await environment.engine(try job.request?.bundle ?? environment.places.bundles)
        let job = try environment.job(engine)
        return try await Task.detached {
            let session = try job.session()
            defer { try? session.close() }
            return try action(session)
        }.value
    }

    /// Opens the job for a bundle, and runs it after `start`, once the run before has ended.
    private func begin(_ bundle: URL, _ start: @escaping @Sendable (TrainingJob) throws -> Void) {
        screen.problem = nil
        screen.question = nil
        let before = work, environment = environment
        work = Task {
            await before?.value
            do {
                let job = try environment.job(try await environment.engine(bundle))
                self.job = job
                try await Task.detached { try start(job) }.value
                defer { refresh() }
                try await Task.detached { [weak self] in
                    try job.run(
                        pollSeconds: environment.pollSeconds, conditions: environment.conditions,
                        changed: { Task { @MainActor in self?.refresh() } }
                    )
                }.value
            } catch let error as ZoError where error.kind == .question {
                screen.question = error
            } catch {
                screen.problem = told(error)
            }
        }
    }

    private func refresh() {
        guard let view = try? job.view else { return }
        var shown = screen
        shown.view = view
        shown.losses = (try? job.losses) ?? []
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
