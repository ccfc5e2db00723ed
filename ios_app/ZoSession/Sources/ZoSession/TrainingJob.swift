import CZoexport
import Foundation

/// `ProcessInfo.ThermalState`, which Linux does not have.
public enum Heat: Int32, Sendable { case nominal, fair, serious, critical }

/// The condition of the device (`zo_conditions`); nil: not known.
public struct Conditions: Sendable {
    fileprivate let c: zo_conditions

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

/// A fine-tuning to do: options of the kind `job`. `steps` include those of an earlier run, `settings` are those that differ,
/// and `engineName` is one of `BundleEngines`; nil: the library's default.
public struct JobRequest: Codable, Equatable, Sendable {
    private enum CodingKeys: String, CodingKey {
        case bundlePath = "bundle", dataPath = "data", heldOutPath = "heldOut", steps, settings, evaluates = "evaluate"
        case evalEvery, patience, keep, engineName = "engine", answer
    }

    private var bundlePath, dataPath: String
    private var heldOutPath: String?
    fileprivate var answer: Answer?
    public var steps: UInt64
    public var settings: Settings
    public var evaluates: Bool
    public var evalEvery, patience: UInt64?
    public var keep: Keep?
    public var engineName: String?

    /// Without `heldOut`, `data` is evaluated, and not during training.
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

public enum Phase: String, Decodable, Sendable { case idle, preparing, evaluating, training, waiting, paused, failed, done }
public enum Reason: String, Decodable, Sendable { case none, asked, heat, battery, disk, memory, background }

/// The state of a job for a screen (docs/iphone.md, `zo_job_view`); nil: not known.
public struct JobView: Decodable, Sendable {
    public let phase: Phase
    public let reason: Reason
    public let step, steps, examples, shortened, anonymousBytes: UInt64
    public let loss, secondsLeft, part: Double?
    public let before, after: Evaluation?
    /// The step of the lowest loss in `evaluations`, which are on held-out examples.
    public let bestStep: UInt64?
    public let evaluations: [StepEvaluation]
    /// Says that the bundle's own engine failed and its fallback trains; else empty.
    public let notice: String
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

/// One fine-tuning in its own folder, which waits, pauses and continues in another process (docs/iphone.md, `job.h`).
///
/// Other threads may call everything but `run` and `start` while these run.
public final class TrainingJob: Sendable {
    private let handle: Handle
    private let engine: EngineBox

    /// Opens the job, paused if another process left it unfinished. The sessions get the other parameters.
    public init(folder: URL, engine: (any Engine)? = nil, cache: String? = nil, trustedKeys: [String]? = nil) throws {
        let path = try checked(folder.path, "folder"), box = EngineBox(engine)
        let options = try json(["cache": cache, "trusted_keys": trustedKeys])
        let opened = try box.open { zo_job_open(path, options, $0, $1, $2) }
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

    /// Checks and stores a request for `run`; on failure, a `question` among them, the job is unchanged.
    public func start(_ request: JobRequest, answer: Answer = .ask) throws {
        var asked = request
        asked.answer = answer
        try handle.verb { try zo_job_start($0, json(asked), $1) }
    }

    /// Trains until the job is done, paused or cancelled, on this thread; throws if it failed, with its progress saved.
    /// It asks for `conditions` at least once for every step, and every `pollSeconds` while it waits.
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

    /// Ends a `run` after its step, saved.
    public func pause(_ reason: Reason = .asked) { try? handle.call(beside: true) { zo_job_pause($0, reason.rawValue) } }

    /// Drops the request, whose state stays, after ending a `run`; `discard`, while none runs, removes that state too.
    public func cancel() throws { try handle.verb(beside: true, zo_job_cancel) }
    public func discard() throws { try handle.verb(beside: true, zo_job_discard) }

    /// Opens the request's bundle with what was trained so far, to generate, evaluate or export.
    public func session() throws -> TrainingSession {
        TrainingSession(try handle.call(beside: true) { job in try opened { zo_job_session(job, $0, $1) } }, engine)
    }

    /// Frees the job, as the last reference does.
    public func close() throws { try handle.close() }
}

private typealias HostBox = Box<(conditions: () -> Conditions, changed: () -> Void)>
