import CZoexport
import Foundation

/// How warm the device is: `ProcessInfo.ThermalState`, which Linux does not have.
public enum Heat: Int32, Sendable {
    case nominal, fair, serious, critical
}

/// What the device says of itself; nil: not known.
public struct Conditions: Sendable {
    public var heat: Heat?
    /// The battery's charge, 0 to 1.
    public var battery: Double?
    public var isCharging: Bool?
    /// On the disk, where the job's folder is.
    public var freeBytes: UInt64?
    /// That the app may still take before the system ends it.
    public var memoryBytes: UInt64?

    public init(
        heat: Heat? = nil, battery: Double? = nil, isCharging: Bool? = nil, freeBytes: UInt64? = nil,
        memoryBytes: UInt64? = nil
    ) {
        self.heat = heat
        self.battery = battery
        self.isCharging = isCharging
        self.freeBytes = freeBytes
        self.memoryBytes = memoryBytes
    }

    /// What is not known keeps what the library has put there.
    fileprivate func fill(_ now: inout zo_conditions) {
        now.heat = heat?.rawValue ?? now.heat
        now.battery = battery ?? now.battery
        now.charging = isCharging.map { $0 ? 1 : 0 } ?? now.charging
        now.free_bytes = freeBytes ?? now.free_bytes
        now.memory_bytes = memoryBytes ?? now.memory_bytes
    }
}

/// What is to be trained.
public struct JobRequest: Equatable, Sendable {
    public var bundle: URL
    /// Examples as JSON Lines (docs/cli.md).
    public var data: URL
    /// In total, those of an earlier run of the same state included.
    public var steps: UInt64
    /// nil: that of the run, or of the bundle.
    public var lr: Double?
    /// Before the first step, and of what is kept of the run.
    public var evaluates: Bool
    /// Examples to evaluate on, also while it trains; nil: `data`, and not meanwhile.
    public var heldOut: URL?
    /// Of `heldOut`: steps from one evaluation to the next; nil: as the run has it, or a tenth of all.
    public var evalEvery: UInt32?
    /// Likewise: evaluations in a row without a lower loss, after which training ends; nil: as the run has it, or never.
    public var patience: UInt32?
    /// Likewise: whose values `TrainingJob.session` gives; nil: as the run has it, or the best.
    public var keep: Keep?
    /// Which of the bundle's engines (`BundleEngines`) takes all runs of the request, also in other processes; nil: the
    /// bundle's own. A state goes on with either.
    public var engineName: String?

    public init(
        bundle: URL, data: URL, steps: UInt64, lr: Double? = nil, evaluates: Bool = true, heldOut: URL? = nil
    ) {
        self.bundle = bundle
        self.data = data
        self.steps = steps
        self.lr = lr
        self.evaluates = evaluates
        self.heldOut = heldOut
    }
}

/// The last step's values, or those of the evaluation with the lowest loss.
public enum Keep: Int32, Sendable {
    case last = 1, best
}

/// What is meant where the bundle's state has steps of other examples or another rate.
public enum Answer: Int32, Sendable {
    case ask, goOn, anew
}

public enum Phase: Int32, Sendable {
    case idle, preparing, evaluating, training, waiting, paused, failed, done
}

/// Why a job waits or is paused.
public enum Reason: Int32, Sendable {
    case none, asked, heat, battery, disk, memory, background
}

/// What a screen shows of a job (docs/jobs.md); nil: not known.
public struct JobView: Sendable {
    public let phase: Phase
    public let reason: Reason
    public let step: UInt64
    public let steps: UInt64
    public let examples: UInt64
    public let shortened: UInt64
    public let loss: Double?
    public let secondsLeft: Double?
    public let anonymousBytes: UInt64
    public let before: Evaluation?
    public let after: Evaluation?
    /// That of the lowest loss on held-out examples (`TrainingJob.evaluations`).
    public let bestStep: UInt64?

    init(_ view: zo_job_view) {
        func known(_ value: Double) -> Double? { value.isNaN ? nil : value }
        phase = Phase(rawValue: view.phase)!
        reason = Reason(rawValue: view.reason)!
        step = view.step
        steps = view.steps
        examples = view.examples
        shortened = view.shortened
        loss = known(view.loss)
        secondsLeft = known(view.seconds_left)
        anonymousBytes = view.anonymous_bytes
        before = view.has_before != 0 ? Evaluation(view.before) : nil
        after = view.has_after != 0 ? Evaluation(view.after) : nil
        bestStep = view.has_best != 0 ? view.best_step : nil
    }
}

/// `loss` is the mean over the steps up to `step` since the point before.
public struct LossPoint: Equatable, Sendable {
    public let step: UInt64
    public let loss: Double
}

/// One fine-tuning in a folder of its own: what was asked for, the bundles' states, and a run that waits, pauses and goes on
/// in another process (docs/jobs.md). All but `run` and `start` may be called beside them.
public final class TrainingJob: Sendable {
    private let handle: Handle

    /// Opens the job; what another process left unfinished is there, paused.
    public init(folder: URL) throws {
        try checkVersion()
        let path = try checked(folder.path, "folder")
        var opened: OpaquePointer?
        try verb { zo_job_open(path, &opened, $0) }
        handle = Handle(opened!, what: "job", free: zo_job_close)
    }

    public var view: JobView {
        get throws {
            try beside { job in
                var view = sized(zo_job_view())
                try verb { zo_job_view_of(job, &view, $0) }
                return JobView(view)
            }
        }
    }

    /// The losses of the run for a chart, at most 400 points.
    public var losses: [LossPoint] {
        get throws {
            try beside { job in
                var points = [zo_loss_point](repeating: zo_loss_point(), count: 512)
                var count = points.count
                try verb { zo_job_losses(job, &points, &count, $0) }
                return points.prefix(count).map { LossPoint(step: $0.step, loss: $0.loss) }
            }
        }
    }

    /// What the run found on its held-out examples so far, by steps.
    public var evaluations: [StepEvaluation] {
        get throws {
            try beside { job in
                var found: [StepEvaluation] = []
                var one = sized(zo_evaluated())
                while zo_job_evaluated(job, UInt32(found.count), &one, nil) == ZO_OK { found.append(StepEvaluation(one)) }
                return found
            }
        }
    }

    /// Why the job failed, waits or is paused.
    public var problem: ZoError? {
        var problem = zo_error()
        handle.beside { zo_job_problem($0, &problem) }
        return problem.code == 0 ? nil : ZoError(problem)
    }

    /// The request; nil where there is none.
    public var request: JobRequest? {
        get throws {
            try beside { job in
                var found = sized(zo_job_request())
                try verb { zo_job_requested(job, &found, $0) }
                let bundle = String(cString: found.bundle), heldOut = String(cString: found.held_out)
                guard !bundle.isEmpty else { return nil }
                var request = JobRequest(
                    bundle: URL(fileURLWithPath: bundle, isDirectory: true),
                    data: URL(fileURLWithPath: String(cString: found.data)), steps: found.steps,
                    lr: found.lr == 0 ? nil : found.lr, evaluates: found.evaluate != 0,
                    heldOut: heldOut.isEmpty ? nil : URL(fileURLWithPath: heldOut)
                )
                request.evalEvery = found.eval_every == 0 ? nil : found.eval_every
                request.patience = found.patience == 0 ? nil : found.patience
                request.keep = Keep(rawValue: found.keep)
                let engineName = String(cString: found.engine_name)
                request.engineName = engineName.isEmpty ? nil : engineName
                return request
            }
        }
    }

    /// Checks and keeps a request, for `run`; bundle and examples are read. On failure the job is as it was.
    ///
    /// - Throws: `ZoError` of kind `question`: the state has steps of something else, or all of them, and `answer` is `ask`.
    public func start(
        _ request: JobRequest, answer: Answer = .ask, engine: (any Engine)? = nil, cache: String? = nil,
        trustedKeys: [String]? = nil
    ) throws {
        let texts = CTexts([
            try checked(request.bundle.path, "bundle"), try checked(request.data.path, "data"),
            try checked(request.heldOut?.path ?? "", "heldOut"), try checked(request.engineName ?? "", "engineName"),
        ])
        let options = try OpenOptions(engine: engine, cache: cache, trustedKeys: trustedKeys)
        try withExtendedLifetime(texts) {
            var given = sized(zo_job_request())
            given.evaluate = request.evaluates ? 1 : 0
            (given.bundle, given.data) = (texts.pointers[0], texts.pointers[1])
            given.held_out = request.heldOut == nil ? nil : texts.pointers[2]
            (given.steps, given.lr) = (request.steps, request.lr ?? 0)
            (given.eval_every, given.patience) = (request.evalEvery ?? 0, request.patience ?? 0)
            given.keep = request.keep?.rawValue ?? 0
            given.engine_name = request.engineName == nil ? nil : texts.pointers[3]
            try handle.call { job in
                try options.withC { options in
                    try verb { zo_job_start(job, &given, answer.rawValue, options, $0) }
                }
            }
        }
    }

    /// Trains until the job is done, paused or cancelled, on this thread.
    ///
    /// - Parameters:
    ///   - pollSeconds: how often the device is looked at while the job waits.
    ///   - conditions: asked at least once for every step.
    ///   - changed: called where `view` has something new.
    /// - Throws: `ZoError`: it failed; what was reached is saved.
    public func run(
        engine: (any Engine)? = nil, cache: String? = nil, trustedKeys: [String]? = nil, pollSeconds: Double = 30,
        conditions: @escaping () -> Conditions, changed: @escaping () -> Void = {}
    ) throws {
        let options = try OpenOptions(engine: engine, cache: cache, trustedKeys: trustedKeys)
        let listener = Listener(conditions, changed)
        try handle.call { job in
            var limits = sized(zo_limits())
            try verb { zo_limits_default(&limits, $0) }
            limits.poll_seconds = pollSeconds
            try withUnsafePointer(to: limits) { limits in
                var host = listener.host(limits)
                try withExtendedLifetime(listener) {
                    try options.withC { options in try verb { zo_job_run(job, &host, options, $0) } }
                }
            }
        }
    }

    /// Ends the `run` that runs after its step, saved.
    public func pause(_ reason: Reason = .asked) {
        handle.beside { zo_job_pause($0, reason.rawValue) }
    }

    /// Drops the request; its state stays. A `run` that runs ends after its step.
    public func cancel() throws {
        try handle.beside { job in try verb { zo_job_cancel(job, $0) } }
    }

    /// Drops the request, and removes the state of its bundle; refused while the job runs.
    public func discard() throws {
        try handle.beside { job in try verb { zo_job_discard(job, $0) } }
    }

    /// The request's bundle with what was trained so far, to generate, evaluate or export.
    public func session(
        engine: (any Engine)? = nil, cache: String? = nil, trustedKeys: [String]? = nil
    ) throws -> TrainingSession {
        let options = try OpenOptions(engine: engine, cache: cache, trustedKeys: trustedKeys)
        return try beside { job in
            var opened: OpaquePointer?
            try options.withC { options in try verb { zo_job_session(job, options, &opened, $0) } }
            return TrainingSession(opened!, options)
        }
    }

    /// Frees the job, which the last reference does too. Closing twice is allowed.
    public func close() throws {
        try handle.close()
    }

    private func beside<Result>(_ action: (OpaquePointer) throws -> Result) throws -> Result {
        guard let result = try handle.beside(action) else {
            throw ZoError(
                .invalidArgument, where: "job", found: "a call after close", expected: "an open one",
                fix: "Open another one."
            )
        }
        return result
    }
}

/// What the library calls while a job runs. It must live as long as that.
private final class Listener {
    private let conditions: () -> Conditions
    private let changed: () -> Void

    init(_ conditions: @escaping () -> Conditions, _ changed: @escaping () -> Void) {
        self.conditions = conditions
        self.changed = changed
    }

    func host(_ limits: UnsafePointer<zo_limits>) -> zo_job_host {
        zo_job_host(
            struct_size: UInt32(MemoryLayout<zo_job_host>.size), reserved: 0,
            user: Unmanaged.passUnretained(self).toOpaque(),
            conditions: { user, now in
                Unmanaged<Listener>.fromOpaque(user!).takeUnretainedValue().conditions().fill(&now!.pointee)
            },
            changed: { user in Unmanaged<Listener>.fromOpaque(user!).takeUnretainedValue().changed() }, limits: limits
        )
    }
}
