import CZoexport
import Foundation

/// `ProcessInfo.ThermalState`, which Linux does not have.
public enum Heat: Int32, Sendable { case nominal, fair, serious, critical }

/// The condition of the device; nil: not known.
public struct Conditions: Sendable {
    fileprivate let c: zo_conditions

    /// - Parameters:
    ///   - battery: its charge, 0 to 1.
    ///   - freeBytes: on the disk of the job's folder.
    ///   - memoryBytes: that the app may still take before the system ends it.
    public init(
        heat: Heat? = nil, battery: Double? = nil, isCharging: Bool? = nil, freeBytes: UInt64? = nil,
        memoryBytes: UInt64? = nil
    ) {
        c = zo_conditions(
            heat: heat?.rawValue ?? Int32(ZO_HEAT_UNKNOWN), charging: isCharging.map { $0 ? 1 : 0 } ?? -1, celsius: .nan,
            battery: battery ?? .nan, free_bytes: freeBytes ?? .max, memory_bytes: memoryBytes ?? .max
        )
    }
}

/// A fine-tuning to do.
public struct JobRequest: Codable, Equatable, Sendable {
    private enum CodingKeys: String, CodingKey {
        case bundlePath = "bundle", dataPath = "data", heldOutPath = "heldOut", steps, settings, evaluates = "evaluate"
        case evalEvery, patience, keep, engineName = "engine", answer
    }

    private var bundlePath, dataPath: String
    private var heldOutPath: String?
    fileprivate var answer: Answer?
    /// Steps in total, those of an earlier run included.
    public var steps: UInt64
    /// Settings that differ from those of the run, or the bundle.
    public var settings: Settings
    /// Evaluates before the first step and after the last.
    public var evaluates: Bool
    /// Steps between evaluations of `heldOut`, and evaluations without a lower loss after which training ends.
    public var evalEvery, patience: UInt64?
    /// The weights that `TrainingJob.session` gives.
    public var keep: Keep?
    /// One of the bundle's engines (`BundleEngines`) for all runs of the request; nil: its own.
    public var engineName: String?

    /// - Parameters:
    ///   - data: examples as JSON Lines (docs/cli.md).
    ///   - heldOut: examples to evaluate on, also during training; nil: `data`, and not during training.
    public init(
        bundle: URL, data: URL, steps: UInt64, settings: Settings = [:], evaluates: Bool = true, heldOut: URL? = nil
    ) {
        (bundlePath, dataPath, heldOutPath) = (bundle.path, data.path, heldOut?.path)
        (self.steps, self.settings, self.evaluates) = (steps, settings, evaluates)
    }

    public var bundle: URL { URL(fileURLWithPath: bundlePath, isDirectory: true) }
    public var data: URL { URL(fileURLWithPath: dataPath) }
    public var heldOut: URL? { heldOutPath.map { URL(fileURLWithPath: $0) } }
}

/// The weights of the last step, or of the evaluation with the lowest loss.
public enum Keep: String, Codable, Sendable { case last, best }

/// The meaning of a start if the bundle's state has steps with other examples or settings.
public enum Answer: String, Codable, Sendable { case ask, goOn = "continue", anew = "restart" }

public enum Phase: String, Decodable, Sendable {
    case idle, preparing, evaluating, training, waiting, paused, failed, done
}

/// Why a job waits or is paused.
public enum Reason: String, Decodable, Sendable { case none, asked, heat, battery, disk, memory, background }

/// The state of a job for a screen (docs/jobs.md); nil: not known.
public struct JobView: Decodable, Sendable {
    public let phase: Phase
    public let reason: Reason
    public let step, steps, examples, shortened, anonymousBytes: UInt64
    public let loss, secondsLeft: Double?
    public let before, after: Evaluation?
    /// The share of the examples that are read or evaluated, 0 to 1.
    public let part: Double?
    /// The step of the lowest loss in `evaluations`, which are on held-out examples, in the order of steps.
    public let bestStep: UInt64?
    public let evaluations: [StepEvaluation]
}

/// The mean loss of the steps up to `step` since the point before.
public struct LossPoint: Decodable, Equatable, Sendable {
    public let step: UInt64
    public let loss: Double

    public init(from decoder: any Decoder) throws {
        var pair = try decoder.unkeyedContainer()
        (step, loss) = (try pair.decode(UInt64.self), try pair.decode(Double.self))
    }
}

/// One fine-tuning in its own folder, which waits, pauses and continues in another process (docs/jobs.md).
///
/// Other threads may call everything but `run` and `start` while these run.
public final class TrainingJob: Sendable {
    private let handle: Handle
    private let engine: EngineBox

    /// Opens the job; what another process left unfinished is there, paused.
    /// - Parameters: as `TrainingSession.init` takes them, for every session of the job.
    public init(
        folder: URL, engine: (any Engine)? = nil, cache: String? = nil, trustedKeys: [String]? = nil
    ) throws {
        let path = try checked(folder.path, "folder"), box = EngineBox(engine)
        let options = try json(["packed_weights": cache, "trusted_keys": trustedKeys])
        var opened: OpaquePointer?
        try box.withC { engine in try verb { zo_job_open(path, options, engine, &opened, $0) } }
        handle = Handle(opened, what: "job") { job in withExtendedLifetime(box) { zo_job_close(job) } }
        self.engine = box
    }

    public var view: JobView { get throws { try handle.read(beside: true, zo_job_view) } }
    /// The losses of the run for a chart, at most 400 points.
    public var losses: [LossPoint] { get throws { try handle.read(beside: true, zo_job_losses) } }
    public var request: JobRequest? { get throws { try handle.read(beside: true, zo_job_request) } }

    /// Why the job failed, waits or is paused.
    public var problem: ZoError? {
        var problem = zo_error()
        try? handle.call(beside: true) { zo_job_problem($0, &problem) }
        return problem.code == 0 ? nil : ZoError(problem)
    }

    /// Checks and stores a request, for `run`. Reads bundle and examples. On failure the job is unchanged.
    /// - Throws: `ZoError` of kind `question`: the state has steps of something else, or all of them, and `answer` is `ask`.
    public func start(_ request: JobRequest, answer: Answer = .ask) throws {
        var request = request
        request.answer = answer
        try handle.verb { try zo_job_start($0, json(request), $1) }
    }

    /// Trains until the job is done, paused or cancelled, on this thread.
    /// - Parameters:
    ///   - pollSeconds: seconds between checks of the device while the job waits.
    ///   - conditions: called at least once for every step.
    ///   - changed: called when `view` has changed.
    /// - Throws: `ZoError`: it failed; progress is saved.
    public func run(
        pollSeconds: Double? = nil, conditions: @escaping () -> Conditions, changed: @escaping () -> Void = {}
    ) throws {
        let box = HostBox((conditions, changed))
        var host = zo_job_host(
            user: box.user, conditions: { $1!.pointee = HostBox.of($0).value.conditions().c },
            changed: { HostBox.of($0).value.changed() }
        )
        try withExtendedLifetime(box) { try handle.verb { try zo_job_run($0, json(["poll_seconds": pollSeconds]), &host, $1) } }
    }

    /// Ends a `run` after its step, saved. `reason` is `asked`, `memory` or `background`.
    public func pause(_ reason: Reason = .asked) { try? handle.call(beside: true) { zo_job_pause($0, reason.rawValue) } }

    /// Drops the request; its state stays. A `run` ends after its step.
    public func cancel() throws { try handle.verb(beside: true, zo_job_cancel) }

    /// Drops the request and removes the state of its bundle; refused while the job runs.
    public func discard() throws { try handle.verb(beside: true, zo_job_discard) }

    /// Opens the request's bundle with what was trained so far, to generate, evaluate or export.
    public func session() throws -> TrainingSession {
        var opened: OpaquePointer?
        try handle.verb(beside: true) { zo_job_session($0, &opened, $1) }
        return TrainingSession(opened, engine)
    }

    /// Frees the job, as the last reference does. Closing twice is allowed.
    public func close() throws { try handle.close() }
}

private typealias HostBox = Box<(conditions: () -> Conditions, changed: () -> Void)>
