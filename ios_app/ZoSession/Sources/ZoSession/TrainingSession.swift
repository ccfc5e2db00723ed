import CZoexport
import Foundation

/// An open bundle and its training run.
///
/// Threads may share a session: calls run one after the other, and `close` waits for the one that runs. Failures are
/// `ZoError`s. `session.h` has the details of every call, and graphs/schema/settings.schema.json all settings and options;
/// options that are nil have the library's defaults.
public final class TrainingSession: Sendable {
    let handle: Handle

    /// Opens a bundle. `engine` runs the programs instead of `engineName`, one of `BundleEngines`; `cache` is a folder for
    /// a GPU's shaders, in an app below its caches directory; one of `trustedKeys`, minisign's, must have signed the bundle.
    public convenience init(
        bundle: URL, threads: Int? = nil, verify: Bool? = nil, engine: (any Engine)? = nil, cache: String? = nil,
        trustedKeys: [String]? = nil, engineName: String? = nil
    ) throws {
        let options = try json([
            "threads": threads, "verify": verify, "cache": cache, "trusted_keys": trustedKeys, "engine": engineName,
        ])
        let path = try checked(bundle.path, "bundle"), box = EngineBox(engine)
        self.init(try box.open { zo_session_open(path, options, $0, $1, $2) }, box)
    }

    init(_ opened: OpaquePointer?, _ engine: EngineBox) {
        handle = Handle(opened, what: "session") { session in withExtendedLifetime(engine) { zo_session_close(session) } }
    }

    public var info: SessionInfo { get throws { try handle.read(zo_session_info) } }
    /// State tensors, in the manifest's order.
    public var slots: [SlotInfo] { get throws { try handle.read(zo_session_slots) } }
    /// Settings of the run: the manifest's, those of a state that is trained, and what `configure` changed.
    public var settings: Settings { get throws { try handle.read(zo_session_settings) } }

    /// Attaches a state folder before any step, and resumes or creates it; without one, nothing of a run is kept.
    public func attach(
        _ state: URL, seed: UInt64? = nil, readOnly: Bool? = nil, recover: Bool? = nil, changeSettings: Bool? = nil
    ) throws {
        let options = try json(["seed": seed, "read_only": readOnly, "recover": recover, "change_settings": changeSettings])
        try handle.verb { try zo_session_attach($0, checked(state.path, "state"), options, $1) }
    }

    /// Changes settings of the run; others stay.
    public func configure(_ settings: Settings) throws {
        try handle.verb { try zo_session_configure($0, json(settings), $1) }
    }

    /// Takes one step on the examples `indices`, in this order.
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

    /// Trains until the run has `totalSteps` steps in total, and saves. `onProgress` is called after every step, on this
    /// thread; true or an error, which comes out, ends the run after saving.
    public func train(_ dataset: Dataset, totalSteps: UInt64, onProgress: ((StepProgress) throws -> Bool)? = nil) throws {
        try Callback(onProgress).during { user in
            var callbacks = zo_train_callbacks()
            callbacks.user = user
            callbacks.on_progress = { Callback<StepProgress>.of($0).call(StepProgress($1!.pointee)) }
            try dataset.handle.call { examples in
                try handle.verb { try zo_session_train($0, examples, nil, json(["steps": totalSteps]), &callbacks, $1) }
            }
        }
    }

    /// `train` in its own thread, with a value for every step. The run ends after its step, saved, when the task that reads
    /// the values is cancelled, or leaves its loop. `close` waits for that end; a new call continues.
    ///
    ///     for try await step in session.steps(of: dataset, totalSteps: 100) { show(step.loss) }
    public func steps(of dataset: Dataset, totalSteps: UInt64) -> AsyncThrowingStream<StepProgress, any Error> {
        AsyncThrowingStream { continuation in
            let thread = Thread {
                do {
                    try self.train(dataset, totalSteps: totalSteps) {
                        if case .terminated = continuation.yield($0) { true } else { false }
                    }
                    continuation.finish()
                } catch {
                    continuation.finish(throwing: error)
                }
            }
            // Apple's systems give other threads than the main one 512 KiB.
            thread.stackSize = 8 << 20
            thread.start()
        }
    }

    /// Ends `train`, `evaluate` or `generate` in another thread, with a `ZoError` of kind `cancelled`; training saves.
    public func cancel() { try? handle.call(beside: true) { zo_session_cancel($0) } }

    /// Evaluates the weights, the pending update applied, with the configured loss.
    public func evaluate(_ dataset: Dataset) throws -> Evaluation {
        try dataset.handle.call { examples in try handle.read { zo_session_evaluate($0, examples, nil, nil, $1, $2) } }
    }

    /// Continues a text, or a conversation with the assistant's response. Changes no state. `onText` gets pieces of the
    /// text, on this thread; true or an error ends it.
    public func generate(
        _ prompt: String? = nil, messages: [Message]? = nil, options: GenerateOptions = GenerateOptions(),
        onText: ((String) throws -> Bool)? = nil
    ) throws -> Generation {
        var options = options, tokens: [Int64] = []
        (options.prompt, options.messages) = (prompt, messages)
        let text = try json(options)
        typealias Piece = Callback<(token: Int64?, text: String?)>
        let listener = Piece { piece in
            if let token = piece.token { tokens.append(token) }
            return try piece.text.flatMap { try onText?($0) } ?? false
        }
        var made: Generation = try listener.during { user in
            try handle.read { session, made, error in
                let onText: zo_on_text = {
                    let piece = UnsafeRawBufferPointer(start: $1, count: $2)
                    return Piece.of($0).call((nil, String(decoding: piece, as: UTF8.self)))
                }
                return zo_session_generate(
                    session, text, { Piece.of($0).call(($1, nil)) }, onText, user, made, error
                )
            }
        }
        made.tokens = tokens
        return made
    }

    /// Frees what `generate` keeps between calls, as a step does.
    public func forget() throws { try handle.verb(zo_session_forget) }

    /// Loads an adapter in PEFT's form under a name, to generate with; replaces one of the same name, and is in no state.
    public func loadAdapter(_ name: String, from folder: URL) throws {
        try handle.verb { try zo_session_load_adapter($0, checked(name, "name"), checked(folder.path, "folder"), $1) }
    }

    public func dropAdapter(_ name: String) throws {
        try handle.verb { try zo_session_drop_adapter($0, checked(name, "name"), $1) }
    }

    /// Writes what was trained, the pending update applied, as an adapter's files, completely or not at all.
    public func exportAdapter(
        to target: URL, format: AdapterFormat? = nil, outtype: Outtype? = nil, replace: Bool? = nil
    ) throws {
        let options = try json(["format": format, "outtype": outtype, "replace": replace])
        try handle.verb { try zo_session_export_adapter($0, options, checked(target.path, "target"), $1) }
    }

    /// Reads record `index` of the trajectory log, below `SessionInfo.steps`.
    public func record(_ index: UInt64) throws -> TrajectoryRecord {
        var record = zo_record(), gradients = [Float](repeating: 0, count: try info.numQueries)
        try handle.verb { zo_session_record($0, index, &record, &gradients, $1) }
        return .init(
            step: record.step, learningRate: record.learning_rate, eps: record.eps, loss: record.loss, gradients: gradients
        )
    }

    /// Writes a snapshot and syncs the log.
    public func save() throws { try handle.verb(zo_session_save) }

    /// Frees the session and releases its state, as the last reference does.
    public func close() throws { try handle.close() }
}

/// Values of state tensors, row-major: `Float` for float32 and float16, and the tensor's own type for integers.
extension TrainingSession {
    /// Reads a slot as the last step evaluated it, or `finished`: with the pending update, as evaluation and export do.
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

    /// Computes a slot's values again from the initial ones and the first `updates` records; not for first-order methods.
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
