import CZoexport
import Foundation

/// An open bundle and its training run.
///
/// Threads may share a session: calls run one after the other, and `close` waits for the one that runs. Failures are
/// `ZoError`s.
public final class TrainingSession: Sendable {
    let handle: Handle

    /// Opens a bundle.
    /// - Parameters:
    ///   - engine: runs the programs instead of the engine that the manifest names.
    ///   - cache: folder of packed weights, for an app one below its caches directory; empty: none.
    ///   - trustedKeys: lines of minisign's .pub files, of which one must have signed the bundle; nil: any bundle opens.
    ///   - engineName: one of the bundle's engines (`BundleEngines`); nil: its own.
    /// - Throws: `ZoError` of kind `bundle`: missing, altered, of another version, or signed by none of the keys.
    public convenience init(
        bundle: URL, threads: Int? = nil, verify: Bool? = nil, engine: (any Engine)? = nil, cache: String? = nil,
        trustedKeys: [String]? = nil, engineName: String? = nil
    ) throws {
        let options = try json([
            "threads": threads, "verify": verify, "packed_weights": cache, "trusted_keys": trustedKeys, "engine": engineName,
        ])
        let path = try checked(bundle.path, "bundle"), box = EngineBox(engine)
        var opened: OpaquePointer?
        try box.withC { engine in try verb { zo_session_open(path, options, engine, &opened, $0) } }
        self.init(opened, box)
    }

    init(_ opened: OpaquePointer?, _ engine: EngineBox) {
        handle = Handle(opened, what: "session") { session in withExtendedLifetime(engine) { zo_session_close(session) } }
    }

    public var info: SessionInfo { get throws { try handle.read(zo_session_info) } }
    /// State tensors, in the manifest's order.
    public var slots: [SlotInfo] { get throws { try handle.read(zo_session_slots) } }
    /// Settings of the run: at first the manifest's, then those of a state that is trained, then what `configure` changed.
    public var settings: Settings { get throws { try handle.read(zo_session_settings) } }

    /// Attaches a state folder before any step; without one, nothing of a run is kept.
    /// - Parameters:
    ///   - state: resumed, or created.
    ///   - seed: the seed of a new state, and must equal that of an existing one.
    ///   - readOnly: the state must exist, is not locked and not written.
    ///   - recover: continues from the last good record of a damaged log, of which a copy is kept.
    ///   - changeSettings: continues with other settings or examples than the run's.
    /// - Throws: `ZoError` of kind `state`: missing, damaged, locked, of another bundle or another seed.
    public func attach(
        _ state: URL, seed: UInt64? = nil, readOnly: Bool? = nil, recover: Bool? = nil, changeSettings: Bool? = nil
    ) throws {
        let options = try json([
            "seed": seed, "read_only": readOnly, "recover": recover, "change_settings": changeSettings,
        ])
        try handle.verb { try zo_session_attach($0, checked(state.path, "state"), options, $1) }
    }

    /// Changes settings of the run; others stay.
    public func configure(_ settings: Settings) throws {
        try handle.verb { try zo_session_configure($0, json(settings), $1) }
    }

    /// Takes one step on the examples `indices`, in this order.
    /// - Throws: `ZoError` of kind `diverged`: the session is back at the last good state; `state`: the record could not be
    ///   written, and the step has not happened.
    public func step(_ dataset: Dataset, indices: [UInt64]) throws -> StepResult {
        try dataset.handle.call { examples in
            try handle.call { session in
                var step = zo_step()
                // An empty array may have no address, which the library would report instead.
                try verb { zo_session_step(session, examples, indices + [0], indices.count, &step, $0) }
                return StepResult(step)
            }
        }
    }

    /// Trains until the run has `totalSteps` steps in total, and saves.
    /// - Parameter onProgress: called after every step, on this thread; true or an error ends the run after saving.
    /// - Throws: the error of `onProgress`, or `ZoError` of kind `cancelled`, `diverged` (the last good state stays) or
    ///   `state` (likewise; or the state's run has other settings or examples).
    public func train(
        _ dataset: Dataset, totalSteps: UInt64, onProgress: ((StepProgress) throws -> Bool)? = nil
    ) throws {
        try Callback(onProgress).during { user in
            var callbacks = zo_train_callbacks()
            callbacks.user = user
            callbacks.on_progress = { Callback<StepProgress>.of($0).call(StepProgress($1!.pointee)) }
            try dataset.handle.call { examples in
                try handle.verb { try zo_session_train($0, examples, nil, json(["steps": totalSteps]), &callbacks, $1) }
            }
        }
    }

    /// Ends `train`, `evaluate` or `generate` in another thread, with a `ZoError` of kind `cancelled`; training saves.
    public func cancel() { try? handle.call(beside: true) { zo_session_cancel($0) } }

    /// Evaluates the weights, the pending update applied, with the configured loss.
    public func evaluate(_ dataset: Dataset) throws -> Evaluation {
        try dataset.handle.call { examples in try handle.read { zo_session_evaluate($0, examples, nil, nil, $1, $2) } }
    }

    /// Reads record `index` of the trajectory log, below `SessionInfo.steps`.
    public func record(_ index: UInt64) throws -> TrajectoryRecord {
        var record = zo_record(), gradients = [Float](repeating: 0, count: try info.queries)
        try handle.verb { zo_session_record($0, index, &record, &gradients, $1) }
        return .init(step: record.step, lr: record.lr, eps: record.eps, loss: record.loss, gradients: gradients)
    }

    /// Writes a snapshot and syncs the log.
    /// - Throws: `ZoError` of kind `state`: no state is attached, or it cannot be written.
    public func save() throws { try handle.verb(zo_session_save) }

    /// Frees the session and releases its state, as the last reference does. Closing twice is allowed.
    public func close() throws { try handle.close() }
}

/// Values of state tensors, row-major: `Float` for float32 and float16, and the tensor's own type for integers.
extension TrainingSession {
    /// Reads a slot.
    /// - Parameter finished: applies the pending update, as evaluation and export do; else as the last step evaluated it.
    public func readSlot<Value: Numeric>(
        _ name: String, as type: Value.Type = Float.self, finished: Bool = true
    ) throws -> [Value] {
        let version = Int32(finished ? ZO_SLOT_FINISHED : ZO_SLOT_CURRENT)
        return try fill(name) { try zo_session_read_slot($0, checked(name, "slot"), version, $1, $2, $3) }
    }

    /// Replaces a slot's initial values (an imported adapter), before the first step.
    public func writeSlot<Value: Numeric>(_ name: String, _ values: [Value]) throws {
        try values.withUnsafeBytes { bytes in
            try handle.verb { try zo_session_write_slot($0, checked(name, "slot"), bytes.baseAddress, bytes.count, $1) }
        }
    }

    /// Computes a slot's values again from the initial ones and the first `updates` records alone.
    /// - Throws: `ZoError` of kind `invalidArgument`: the method is of first order, whose records lack the updates.
    public func replaySlot<Value: Numeric>(
        _ name: String, updates: UInt64, as type: Value.Type = Float.self
    ) throws -> [Value] {
        try fill(name) { try zo_session_replay_slot($0, checked(name, "slot"), updates, $1, $2, $3) }
    }

    private func fill<Value>(
        _ name: String, _ read: (OpaquePointer?, UnsafeMutableRawPointer?, Int, ErrorPointer?) throws -> zo_status
    ) throws -> [Value] {
        // The library refuses an unknown name.
        let elements = try slots.first { $0.name == name }?.elements ?? 0
        return try [Value](unsafeUninitializedCapacity: max(elements, 1)) { values, count in
            try handle.verb { try read($0, values.baseAddress, elements * MemoryLayout<Value>.size, $1) }
            count = elements
        }
    }
}
