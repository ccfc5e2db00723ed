package zoexport.session

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.json.JSONArray
import org.json.JSONObject

/**
 * Opens a bundle and runs its training; the library computes everything. Threads may share a session: calls run one after
 * the other, and [close] waits for the running one. Failures are [ZoException]s. graphs/schema/settings.schema.json lists
 * settings and all kinds of options.
 */
class TrainingSession internal constructor(address: Long) : AutoCloseable {
    private val handle = Handle(address, "session", Native::close)

    /** The bundle's numbers and the steps taken so far. */
    val info: SessionInfo get() = handle.call(::infoOf)

    /** The state tensors, in the manifest's order. */
    val slots: List<SlotInfo> get() = handle.call(::slotsOf)

    /** The settings of the run by key: the bundle's, those of the attached state, and what [configure] changed. */
    val settings: Map<String, Any> get() = handle.call { parsed(Native.settings(it)).settings() }

    /** The names of the loaded adapters. */
    val adapters: List<String> get() = info.adapters

    /** The evaluations of the run on validation examples, in the order of steps. */
    val evaluations: List<StepEvaluation>
        get() = handle.call { JSONArray(Native.evaluations(it)).each(::StepEvaluation) }

    /**
     * Attaches a state folder, before any step: resumes it, or creates it. Without one, the run is not kept. The settings of
     * a run that has begun become the session's. The options are those of the kind `attach`.
     *
     * @throws ZoException.State if the state is missing, damaged, locked, or has another bundle or seed.
     */
    fun attach(
        state: File, seed: ULong? = null, readOnly: Boolean = false, recover: Boolean = false,
        changeSettings: Boolean = false,
    ) {
        val options = options(
            "seed" to seed, "read_only" to readOnly, "recover" to recover, "change_settings" to changeSettings,
        )
        handle.call { Native.attach(it, state.path, options) }
    }

    /** Changes settings of the run by key, such as `lr`. The others stay. */
    fun configure(settings: Map<String, Any>) = handle.call { Native.configure(it, json(settings)) }

    /** Takes one step on the examples [indices], in this order. */
    fun step(dataset: Dataset, indices: LongArray): StepResult =
        with(dataset) { session, examples -> StepResult(Native.step(session, examples, indices)) }

    /**
     * Trains until the run has [totalSteps] steps, and saves. Callbacks run on the thread that trains. If one returns true
     * or throws, the run ends after its step, saved, with [ZoException.Cancelled] or that exception. Options are of the kind
     * `train`.
     *
     * @param heldOut validation examples, on which it evaluates before, during and after training.
     * @throws ZoException.Diverged if the loss left its range; the last good state stays.
     * @throws ZoException.State if settings or examples differ from the run's, or the state could not be written.
     */
    fun train(
        dataset: Dataset, totalSteps: Long, heldOut: Dataset? = null, evalEvery: Int? = null, patience: Int? = null,
        keep: Keep? = null, onEvaluation: (StepEvaluation) -> Boolean = { false },
        onProgress: (StepProgress) -> Boolean = { false },
    ) {
        val options = options("steps" to totalSteps, "eval_every" to evalEvery, "patience" to patience, "keep" to keep)
        val listener = object : Listener() {
            override fun onStep(
                step: Long, total: Long, loss: Double, lr: Double, seconds: Double, rssBytes: Long, anonymousBytes: Long,
            ) = onProgress(StepProgress(step, total, loss, lr, seconds, rssBytes, anonymousBytes))

            override fun onJson(json: String) = onEvaluation(StepEvaluation(JSONObject(json)))
        }
        with(dataset) { session, examples ->
            fun train(others: Long) = Native.train(session, examples, others, options, listener)
            heldOut?.handle?.call(::train) ?: train(0)
        }
    }

    /** Ends a [train] in another thread: it finishes its step, saves and throws [ZoException.Cancelled]. */
    fun cancel() {
        handle.beside(Native::cancel)
    }

    /** Evaluates the weights, the pending update applied, with the configured loss. [onPart] gets examples. */
    fun evaluate(dataset: Dataset, onPart: OnPart = { _, _ -> false }): Evaluation = with(dataset) { session, examples ->
        Evaluation(JSONObject(Native.evaluate(session, examples, Listener(onPart))))
    }

    /**
     * Continues a text, with the bundle's tokenizer. Changes no state.
     *
     * @param onText receives pieces of the text, none of which cuts a character; true ends it. Its exceptions pass through.
     * @throws ZoException.Bundle if the bundle has no programs that generate, or no tokenizer.
     */
    fun generate(
        prompt: String, options: GenerateOptions = GenerateOptions(), onText: (String) -> Boolean = { false },
    ): Generation = generated(options.json("prompt" to prompt), onText)

    /** Generates the assistant's response in a conversation, with the model's chat template; otherwise as for a text. */
    fun generate(
        messages: List<Message>, options: GenerateOptions = GenerateOptions(), onText: (String) -> Boolean = { false },
    ): Generation = generated(options.json("messages" to messages.map { it.json }), onText)

    private fun generated(options: String, onText: (String) -> Boolean): Generation = handle.call {
        val tokens = ArrayList<Long>()
        val listener = object : Listener() {
            override fun onToken(token: Long) = !tokens.add(token)

            override fun onText(piece: String) = onText(piece)
        }
        Generation(JSONObject(Native.generate(it, options, listener)), tokens.toLongArray())
    }

    /** Frees what [generate] keeps between calls: caches and the tokenizer. A step frees them too. */
    fun forget() = handle.call(Native::forget)

    /** Loads an adapter in PEFT's form, to generate with, and replaces one of the same name. It is in no state. */
    fun loadAdapter(name: String, folder: File) = handle.call { Native.loadAdapter(it, name, folder.path) }

    /** Frees an adapter. */
    fun dropAdapter(name: String) = handle.call { Native.dropAdapter(it, name) }

    /**
     * Writes what was trained, the pending update applied, as an adapter to [target], completely or not at all.
     *
     * @throws ZoException.InvalidArgument if the bundle trains no adapter of floats, [target] exists without [replace] or
     *   cannot be written, or a value does not fit [outtype].
     */
    fun exportAdapter(
        target: File, format: AdapterFormat = AdapterFormat.PEFT, outtype: Outtype = Outtype.F32, replace: Boolean = false,
    ) {
        val options = options("format" to format, "outtype" to outtype, "replace" to replace)
        handle.call { Native.exportAdapter(it, options, target.path) }
    }

    /** Describes the state tensor with this name. */
    fun slot(name: String): SlotInfo = handle.call { slotOf(it, name) }

    /** Reads a tensor of floats, row-major; float16 converts exactly. */
    fun readSlot(name: String, values: SlotValues = SlotValues.FINISHED): FloatArray =
        floats(name, readSlotBytes(name, values))

    /** Reads a tensor of any [Dtype] as bytes: floats as float32, integers as they are. */
    fun readSlotBytes(name: String, values: SlotValues = SlotValues.FINISHED): ByteArray =
        handle.call { Native.readSlot(it, name, values.ordinal, slotOf(it, name).bytes) }

    /** Replaces a tensor's initial values (an imported adapter), before the first step; float16 rounds them. */
    fun writeSlot(name: String, values: FloatArray) {
        val bytes = ByteBuffer.allocate(4 * values.size).order(ByteOrder.nativeOrder())
        bytes.asFloatBuffer().put(values)
        writeSlotBytes(name, bytes.array())
    }

    /** Replaces them by bytes as [readSlotBytes] gives them. */
    fun writeSlotBytes(name: String, bytes: ByteArray) = handle.call { Native.writeSlot(it, name, bytes) }

    /** Computes a tensor from the initial values and the first [updates] records alone; not for first-order methods. */
    fun replaySlot(name: String, updates: Long): FloatArray = floats(name, replaySlotBytes(name, updates))

    /** Computes it as bytes as [readSlotBytes] gives them. */
    fun replaySlotBytes(name: String, updates: Long): ByteArray =
        handle.call { Native.replaySlot(it, name, updates.notNegative("updates"), slotOf(it, name).bytes) }

    /** Reads record [index] of the trajectory log. */
    fun record(index: Long): TrajectoryRecord =
        handle.call { TrajectoryRecord(Native.record(it, index.notNegative("index"), infoOf(it).queries)) }

    /** Writes a snapshot and syncs the log. */
    fun save() = handle.call(Native::save)

    override fun close() = handle.close()

    private fun <T> with(dataset: Dataset, action: (session: Long, examples: Long) -> T): T =
        dataset.handle.call { examples -> handle.call { action(it, examples) } }

    private fun infoOf(session: Long) = SessionInfo(parsed(Native.info(session)))

    private fun slotsOf(session: Long) = JSONArray(Native.slots(session)).each(::SlotInfo)

    private fun slotOf(session: Long, name: String): SlotInfo = slotsOf(session).find { it.name == name }
        ?: throw ZoException.InvalidArgument("slot $name", "no such slot", "a slot of the bundle", "Choose one of `slots`.")

    private fun floats(name: String, bytes: ByteArray): FloatArray {
        val dtype = slot(name).dtype
        if (!slot(name).isFloat) {
            throw ZoException.InvalidArgument("slot $name", "elements of $dtype", "floats", "Read it as bytes.")
        }
        val floats = ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder()).asFloatBuffer()
        return FloatArray(floats.remaining()).also(floats::get)
    }

    companion object {
        /**
         * Opens a bundle. The options are those of the kind `open`.
         *
         * @param cache folder of packed weights, on Android below `Context.cacheDir`. Empty: none; null: the environment's.
         * @param trustedKeys public keys in the form of minisign's .pub files, of which one must have signed the bundle;
         *   null: any bundle opens.
         * @param engineName which of the bundle's engines ([BundleEngines]) runs its programs; null: its own.
         * @throws ZoException.Bundle if it is missing, altered, of another version, or none of the keys signed it.
         * @throws ZoException.Engine if the engine or its device is missing. [BundleEngines.insteadOf] names another one.
         */
        fun open(
            bundle: File, threads: Int = 0, verify: Boolean = true, cache: String? = null,
            trustedKeys: List<String>? = null, engineName: String? = null,
        ): TrainingSession {
            val options = options(
                "threads" to threads, "verify" to verify, "packed_weights" to cache, "trusted_keys" to trustedKeys,
                "engine" to engineName,
            )
            return TrainingSession(Native.open(bundle.path, options))
        }
    }
}
