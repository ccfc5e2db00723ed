import CZoexport
import Foundation

/// An open bundle and its training run. The loop is the library's; nothing here computes.
///
/// A session may be shared by threads: calls run one after the other, and `close` waits for the one that runs. Failures
/// are `ZoError`s.
public final class TrainingSession: Sendable {
    let handle: Handle

    /// Opens a bundle.
    ///
    /// - Parameters:
    ///   - bundle: the bundle's folder.
    ///   - threads: of the engine; 0 leaves the choice to it.
    ///   - verify: whether files are hashed before they are used; sizes are always compared.
    ///   - engine: runs the programs instead of the engine that the manifest names.
    ///   - cache: folder of packed weights, for an app one below its caches directory; empty: none; nil: the one that
    ///     the environment names.
    ///   - trustedKeys: public keys, as the lines of minisign's .pub files, of which one must have signed the bundle; nil:
    ///     any bundle. An app that ships a key opens nothing else.
    ///   - engineName: which of the bundle's engines (`BundleEngines`) runs its programs; nil: its own.
    /// - Throws: `ZoError` of kind `bundle`: missing, altered, of another version, or signed by none of the keys; of kind
    ///   `invalidArgument`: no key in the list, or something else.
    public convenience init(
        bundle: URL, threads: UInt32 = 0, verify: Bool = true, engine: (any Engine)? = nil, cache: String? = nil,
        trustedKeys: [String]? = nil, engineName: String? = nil
    ) throws {
        try checkVersion()
        let path = try checked(bundle.path, "bundle")
        let options = try OpenOptions(
            threads: threads, verify: verify, engine: engine, cache: cache, trustedKeys: trustedKeys,
            engineName: engineName
        )
        var opened: OpaquePointer?
        try options.withC { options in try verb { zo_session_open(path, options, &opened, $0) } }
        self.init(opened!, options)
    }

    /// A session that the library opened with these options.
    init(_ opened: OpaquePointer, _ options: OpenOptions) {
        handle = Handle(opened, what: "session") { address in
            // The library calls the engine until here.
            withExtendedLifetime(options) { zo_session_close(address) }
        }
    }

    /// The bundle's numbers and the steps taken so far.
    public var info: SessionInfo {
        get throws { try handle.call { SessionInfo(try readInfo(of: $0)) } }
    }

    /// The state slots, in the manifest's order.
    public var slots: [SlotInfo] {
        get throws { try handle.call(readSlots(of:)) }
    }

    /// The run as it is configured: at first the bundle's settings, then those of a state that is trained.
    public var run: Run {
        get throws {
            try handle.call { session in
                var run = sized(zo_run())
                try verb { zo_session_run(session, &run, $0) }
                return Run(run)
            }
        }
    }

    /// Attaches a state folder, right after opening; without one, nothing of a run is kept. The settings of a run that has
    /// begun become those of `run`, unless it is only read.
    ///
    /// - Parameters:
    ///   - state: resumed, or created where there is none.
    ///   - seed: of a new state (the bundle's where nil); must equal that of an existing one.
    ///   - readOnly: the state must exist, is not locked and not written.
    ///   - recover: go on from the last good record of a damaged log, of which a copy is kept.
    ///   - changeSettings: steps may be taken with other settings or examples than the run's.
    /// - Throws: `ZoError` of kind `state`: missing, damaged, locked, of another bundle or another seed.
    public func attach(
        _ state: URL, seed: UInt64? = nil, readOnly: Bool = false, recover: Bool = false, changeSettings: Bool = false
    ) throws {
        let path = try checked(state.path, "state")
        let mode = Int32(readOnly ? ZO_STATE_READ : ZO_STATE_TRAIN)
        try handle.call { session in
            try withOptionalPointer(to: seed) { seed in
                var options = zo_attach_options(
                    struct_size: UInt32(MemoryLayout<zo_attach_options>.size), mode: mode, seed: seed,
                    recover: recover ? 1 : 0, change_settings: changeSettings ? 1 : 0, last: 0
                )
                try verb { zo_session_attach_with(session, path, &options, $0) }
            }
        }
    }

    /// Sets how the run trains; begin with a copy of `run`.
    public func configure(_ run: Run) throws {
        var chosen = run.c
        try handle.call { session in try verb { zo_session_configure(session, &chosen, $0) } }
    }

    /// Takes one step on the examples `indices`, in this order.
    ///
    /// - Throws: `ZoError` of kind `diverged`: the loss left its range, and the session is back at the last good state;
    ///   of kind `state`: the record could not be written, and the step has not happened.
    public func step(_ dataset: Dataset, indices: [UInt64]) throws -> StepResult {
        try dataset.handle.call { examples in
            try handle.call { session in
                var step = sized(zo_step())
                try verb { error in
                    // An empty array may have no address, which the library would report instead.
                    (indices + [0]).withUnsafeBufferPointer {
                        zo_session_step(session, examples, $0.baseAddress, indices.count, &step, error)
                    }
                }
                return StepResult(step)
            }
        }
    }

    /// Trains until the run has `totalSteps` steps in total, and saves.
    ///
    /// - Parameter onProgress: called after every step, on this thread; true stops the run after saving. An error of it
    ///   does so too, and comes out of here.
    /// - Throws: `ZoError` of kind `cancelled`, `diverged` (the last good state stays), or `state` (likewise; or the state's
    ///   run has other settings or examples).
    public func train(
        _ dataset: Dataset, totalSteps: UInt64, onProgress: ((StepProgress) throws -> Bool)? = nil
    ) throws {
        let callback = ProgressCallback(onProgress)
        let result = Result {
            try dataset.handle.call { examples in
                try handle.call { session in
                    try withExtendedLifetime(callback) {
                        try verb {
                            zo_session_train(session, examples, totalSteps, callback.function, callback.user, $0)
                        }
                    }
                }
            }
        }
        if let thrown = callback.thrown {
            throw thrown
        }
        try result.get()
    }

    /// Ends the `train` that runs in another thread: it finishes its step, saves and throws a `ZoError` of kind
    /// `cancelled`.
    public func cancel() {
        handle.beside { zo_session_cancel($0) }
    }

    /// Evaluates the master weights, the pending update applied, with the configured loss.
    public func evaluate(_ dataset: Dataset) throws -> Evaluation {
        try dataset.handle.call { examples in
            try handle.call { session in
                var evaluation = sized(zo_evaluation())
                try verb { zo_session_evaluate(session, examples, nil, nil, &evaluation, $0) }
                return Evaluation(evaluation)
            }
        }
    }

    /// Record `index` of the trajectory log, below `SessionInfo.steps`.
    public func record(_ index: UInt64) throws -> TrajectoryRecord {
        try handle.call { session in
            var record = sized(zo_record())
            var gradients = [Float](repeating: 0, count: Int(try readInfo(of: session).queries))
            try verb { zo_session_record(session, index, &record, &gradients, $0) }
            return TrajectoryRecord(
                step: record.step, lr: record.lr, eps: record.eps, loss: record.loss, gradients: gradients
            )
        }
    }

    /// Writes a snapshot and syncs the log.
    ///
    /// - Throws: `ZoError` of kind `state`: no state is attached, or it cannot be written.
    public func save() throws {
        try handle.call { session in try verb { zo_session_save(session, $0) } }
    }

    /// Frees the session and releases its state, which the last reference does too. Closing twice is allowed.
    public func close() throws {
        try handle.close()
    }
}

func readInfo(of session: OpaquePointer) throws -> zo_info {
    var info = sized(zo_info())
    try verb { zo_session_info(session, &info, $0) }
    return info
}

func readSlots(of session: OpaquePointer) throws -> [SlotInfo] {
    try (0..<readInfo(of: session).slots).map { index in
        var slot = sized(zo_slot_info())
        try verb { zo_session_slot(session, index, &slot, $0) }
        return SlotInfo(slot)
    }
}

func withOptionalPointer<Value, Result>(
    to value: Value?, _ body: (UnsafePointer<Value>?) throws -> Result
) rethrows -> Result {
    guard let value else { return try body(nil) }
    return try withUnsafePointer(to: value) { try body($0) }
}
