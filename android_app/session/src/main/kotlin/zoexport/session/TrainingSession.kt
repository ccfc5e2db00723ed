package zoexport.session

import java.io.File
import kotlin.LazyThreadSafetyMode.PUBLICATION
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.channelFlow
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.isActive
import org.json.JSONObject

/**
 * Opens a bundle and runs its training; the library computes everything. Threads may share a session: calls run one after
 * the other, and [close] waits for the running one. Failures are [ZoException]s. `session.h` has the details of every call,
 * and graphs/schema/settings.schema.json all settings and options.
 */
class TrainingSession internal constructor(address: Long) : AutoCloseable {
    private val handle = Handle(address, "session", Native::close)

    val info: SessionInfo get() = handle.call { SessionInfo(parsed(Native.info(it))) }

    /** The state tensors, in the manifest's order. */
    val slots: List<SlotInfo> by lazy(PUBLICATION) { handle.call { list(Native.slots(it), ::SlotInfo) } }

    /** The settings of the run by key: the bundle's, those of the attached state, and what [configure] changed. */
    val settings: Map<String, Any> get() = handle.call { parsed(Native.settings(it)).settings() }

    /** The evaluations of the run on validation examples, in the order of steps. */
    val evaluations: List<StepEvaluation> get() = handle.call { list(Native.evaluations(it), ::StepEvaluation) }

    /**
     * Attaches a state folder, before any step: resumes it, or creates it. Without one, the run is not kept. A run that has
     * begun brings its settings. Throws [ZoException.State] if it is missing, damaged, locked, or of another bundle or seed.
     */
    fun attach(
        state: File, seed: ULong? = null, readOnly: Boolean = false, recover: Boolean = false,
        changeSettings: Boolean = false,
    ) = handle.call {
        val options = options(
            "seed" to seed, "read_only" to readOnly, "recover" to recover, "change_settings" to changeSettings,
        )
        Native.attach(it, state.path, options)
    }

    /** Changes settings of the run by key, such as `learning_rate`. The others stay. */
    fun configure(settings: Map<String, Any>) = handle.call { Native.configure(it, json(settings)) }

    /** Takes one step on the examples [indices], in this order. */
    fun step(dataset: Dataset, indices: LongArray): StepResult =
        with(dataset) { session, examples -> StepResult(Native.step(session, examples, indices)) }

    /**
     * Trains until the run has [totalSteps] steps, and saves; with [heldOut] it evaluates before, during and after. If a
     * callback, on this thread, returns true or throws, the run ends after its step, saved, with [ZoException.Cancelled] or
     * that exception. [ZoException.Diverged]: the loss left its range; the last good state stays.
     */
    fun train(
        dataset: Dataset, totalSteps: Long, heldOut: Dataset? = null, evalEvery: Int? = null, patience: Int? = null,
        keep: Keep? = null, onEvaluation: (StepEvaluation) -> Boolean = { false },
        onProgress: (StepProgress) -> Boolean = { false },
    ) {
        val options = options("steps" to totalSteps, "eval_every" to evalEvery, "patience" to patience, "keep" to keep)
        val listener = Listener(step = onProgress, json = { onEvaluation(StepEvaluation(it)) })
        with(dataset) { session, examples ->
            fun train(others: Long) = Native.train(session, examples, others, options, listener)
            heldOut?.handle?.call(::train) ?: train(0)
        }
    }

    /**
     * Returns [train] as a cold flow: collecting it trains in a thread of [dispatcher], and emits every step. Cancelling the
     * collector ends the run: the current step is saved before the collector's scope completes. A slow one delays nothing.
     */
    fun progress(
        dataset: Dataset, totalSteps: Long, dispatcher: CoroutineDispatcher = Dispatchers.IO,
    ): Flow<StepProgress> = channelFlow {
        try {
            train(dataset, totalSteps) { trySend(it).let { !isActive } }
        } catch (error: ZoException) {
            ensureActive() // a collector that left has ended the run itself
            throw error
        }
    }.buffer(Channel.UNLIMITED).flowOn(dispatcher)

    /** Ends a [train] in another thread: it finishes its step, saves and throws [ZoException.Cancelled]. */
    fun cancel() = handle.beside(Native::cancel) ?: Unit

    /** Evaluates the weights, the pending update applied, with the configured loss. [onPart] gets examples. */
    fun evaluate(dataset: Dataset, onPart: OnPart = { _, _ -> false }): Evaluation = with(dataset) { session, examples ->
        Evaluation(JSONObject(Native.evaluate(session, examples, Listener(onPart))))
    }

    /** Continues a text. Changes no state. [onText] receives its pieces; true ends it, and its exceptions pass through. */
    fun generate(
        prompt: String, options: GenerateOptions = GenerateOptions(), onText: (String) -> Boolean = { false },
    ): Generation = generated(options.json("prompt" to prompt), onText)

    /** Generates the assistant's response in a conversation, with the model's chat template. */
    fun generate(
        messages: List<Message>, options: GenerateOptions = GenerateOptions(), onText: (String) -> Boolean = { false },
    ): Generation = generated(options.json("messages" to messages.map { it.json }), onText)

    private fun generated(options: String, onText: (String) -> Boolean): Generation = handle.call {
        val tokens = ArrayList<Long>()
        val made = Native.generate(it, options, Listener(token = tokens::add, text = onText))
        Generation(JSONObject(made), tokens.toLongArray())
    }

    /** Frees what [generate] keeps between calls, as a step does. */
    fun forget() = handle.call(Native::forget)

    /** Loads an adapter in PEFT's form, to generate with, and replaces one of the same name. It is in no state. */
    fun loadAdapter(name: String, folder: File) = handle.call { Native.loadAdapter(it, name, folder.path) }
    fun dropAdapter(name: String) = handle.call { Native.dropAdapter(it, name) }

    /** Writes what was trained, the pending update applied, as an adapter to [target], completely or not at all. */
    fun exportAdapter(
        target: File, format: AdapterFormat = AdapterFormat.PEFT, outtype: Outtype = Outtype.F32, replace: Boolean = false,
    ) = handle.call {
        Native.exportAdapter(it, options("format" to format, "outtype" to outtype, "replace" to replace), target.path)
    }

    fun slot(name: String): SlotInfo = slots.find { it.name == name }
        ?: throw ZoException.InvalidArgument("slot $name", "no such slot", "a slot of the bundle", "Choose one of `slots`.")

    /** Reads a tensor, row-major: floats (float16 converts exactly), or bytes of any [Dtype], those of floats as float32. */
    fun readSlot(name: String, values: SlotValues = SlotValues.FINISHED): FloatArray =
        slot(name).floats(readSlotBytes(name, values))
    fun readSlotBytes(name: String, values: SlotValues = SlotValues.FINISHED): ByteArray =
        slot(name).run { handle.call { Native.readSlot(it, name, values.ordinal, bytes) } }

    /** Replaces a tensor's initial values (an imported adapter), before the first step; float16 rounds them. */
    fun writeSlot(name: String, values: FloatArray) = writeSlotBytes(name, values.bytes())
    fun writeSlotBytes(name: String, bytes: ByteArray) = handle.call { Native.writeSlot(it, name, bytes) }

    /** Computes a tensor from the initial values and the first [updates] records alone; not for first-order methods. */
    fun replaySlot(name: String, updates: Long): FloatArray = slot(name).floats(replaySlotBytes(name, updates))
    fun replaySlotBytes(name: String, updates: Long): ByteArray =
        slot(name).run { handle.call { Native.replaySlot(it, name, updates, bytes) } }

    /** Reads record [index] of the trajectory log. */
    fun record(index: Long): TrajectoryRecord =
        info.run { handle.call { TrajectoryRecord(Native.record(it, index, numQueries)) } }

    /** Writes a snapshot and syncs the log. */
    fun save() = handle.call(Native::save)

    override fun close() = handle.close()

    private fun <T> with(dataset: Dataset, action: (session: Long, examples: Long) -> T): T =
        dataset.handle.call { examples -> handle.call { action(it, examples) } }

    companion object {
        /**
         * Opens a bundle. [cache] is a folder for a GPU's shaders, on Android below `Context.cacheDir`; empty: none. One of
         * [trustedKeys], minisign's, must have signed the bundle; null: any opens. [engineName] is one of [BundleEngines].
         */
        fun open(
            bundle: File, threads: Int = 0, verify: Boolean = true, cache: String? = null,
            trustedKeys: List<String>? = null, engineName: String? = null,
        ): TrainingSession {
            val options = options(
                "threads" to threads, "verify" to verify, "cache" to cache, "trusted_keys" to trustedKeys,
                "engine" to engineName,
            )
            return TrainingSession(Native.open(bundle.path, options))
        }
    }
}
