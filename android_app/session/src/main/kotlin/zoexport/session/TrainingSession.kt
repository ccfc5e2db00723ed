package zoexport.session

import java.io.File

/**
 * An open bundle and its training run. The loop is the library's; nothing here computes.
 *
 * A session may be shared by threads: calls run one after the other, and [close] waits for the one that runs. Failures
 * are [ZoException]s.
 */
class TrainingSession internal constructor(address: Long) : AutoCloseable {
    private val handle = Handle(address, "session", ::nativeClose)

    /** The bundle's numbers and the steps taken so far. */
    val info: SessionInfo get() = handle.call(::nativeInfo)

    /** The state slots, in the manifest's order. */
    val slots: List<SlotInfo> get() = handle.call(::slotsOf)

    /** The run as it is configured: at first the bundle's settings, then those of a state that is trained. */
    val run: Run get() = handle.call(::nativeRun)

    /**
     * Attaches a state folder, right after opening; without one, nothing of a run is kept. The settings of a run that has
     * begun become those of [run], unless it is only read.
     *
     * @param state resumed, or created where there is none.
     * @param seed of a new state (the bundle's where null); must equal that of an existing one.
     * @param readOnly the state must exist, is not locked and not written.
     * @param recover go on from the last good record of a damaged log, of which a copy is kept.
     * @param changeSettings steps may be taken with other settings or examples than the run's.
     * @throws ZoException.State missing, damaged, locked, of another bundle or another seed.
     */
    fun attach(
        state: File,
        seed: ULong? = null,
        readOnly: Boolean = false,
        recover: Boolean = false,
        changeSettings: Boolean = false,
    ) = handle.call {
        nativeAttach(
            it, state.path.checked("state"), readOnly, seed != null, (seed ?: 0u).toLong(), recover, changeSettings,
        )
    }

    /** Sets how the run trains; begin with a copy of [run]. */
    fun configure(run: Run) = handle.call {
        nativeConfigure(
            it, run.schedule.ordinal, run.loss.ordinal, run.batch.toLong().notNegative("batch").toInt(),
            run.accumulate.toLong().notNegative("accumulate").toInt(), run.lr, run.eps, run.seed.toLong(),
            run.totalSteps.notNegative("totalSteps"), run.momentum, run.weightDecay, run.clip,
            run.checkpointEvery.toLong().notNegative("checkpointEvery").toInt(), run.difference.ordinal,
            run.warmup.toLong().notNegative("warmup").toInt(), run.dpoBeta, run.orpoBeta, run.choices.ordinal,
            run.pack, run.keepMb.toLong().notNegative("keepMb").toInt(),
            run.cachePrefixMb.toLong().notNegative("cachePrefixMb").toInt(),
        )
    }

    /**
     * Takes one step on the examples [indices], in this order.
     *
     * @throws ZoException.Diverged the loss left its range; the session is back at the last good state.
     * @throws ZoException.State the record could not be written; the step has not happened.
     */
    fun step(dataset: Dataset, indices: LongArray): StepResult = dataset.handle.call { examples ->
        handle.call { nativeStep(it, examples, indices) }
    }

    /**
     * Trains until the run has [totalSteps] steps in total, and saves. An exception of [onProgress] ends the run after
     * saving, and comes out of here.
     *
     * @throws ZoException.Cancelled [onProgress] returned true.
     * @throws ZoException.Diverged the loss left its range; the last good state stays.
     * @throws ZoException.State other settings or examples than the run's, or the state could not be written; the last
     *   good state stays.
     */
    fun train(dataset: Dataset, totalSteps: Long, onProgress: OnProgress? = null) =
        dataset.handle.call { examples ->
            handle.call { nativeTrain(it, examples, totalSteps.notNegative("totalSteps"), onProgress) }
        }

    /** Ends the [train] that runs in another thread: it finishes its step, saves and throws [ZoException.Cancelled]. */
    fun cancel() {
        handle.beside(::nativeCancel)
    }

    /** Evaluates the master weights, the pending update applied, with the configured loss. */
    fun evaluate(dataset: Dataset): Evaluation = dataset.handle.call { examples ->
        handle.call { nativeEvaluate(it, examples) }
    }

    /**
     * Generates what follows a text, with the bundle's tokenizer. Changes no state.
     *
     * @param onText called with pieces of the text as they come; what it throws comes out of here.
     * @throws ZoException.Bundle the bundle has no programs that generate, or no tokenizer; the message says why.
     * @throws ZoException.InvalidArgument a prompt that is empty or too long, an option out of range, an unknown adapter.
     */
    fun generate(prompt: String, options: GenerateOptions = GenerateOptions(), onText: OnText? = null): Generation =
        generated(prompt, emptyList(), options, onText)

    /** Generates the assistant's answer in a conversation, which the model's chat template writes; as for a text. */
    fun generate(
        messages: List<Message>,
        options: GenerateOptions = GenerateOptions(),
        onText: OnText? = null,
    ): Generation = generated(null, messages, options, onText)

    /** Frees what [generate] keeps between calls: caches, and the tokenizer. A step frees it too. */
    fun forget() = handle.call(::nativeForget)

    /** The names of the loaded adapters. */
    val adapters: List<String>
        get() = handle.call { session -> generateSequence(0) { it + 1 }.map { nativeAdapter(session, it) }
            .takeWhile { it != null }.filterNotNull().toList() }

    /**
     * Loads an adapter in PEFT's form under a name, in place of one that has it, to generate with; it is in no state.
     *
     * @throws ZoException.State it does not fit the bundle, or is damaged; nothing changes.
     */
    fun loadAdapter(name: String, folder: File) =
        handle.call { nativeLoadAdapter(it, name.checked("name"), folder.path.checked("folder")) }

    /** Frees an adapter. */
    fun dropAdapter(name: String) = handle.call { nativeDropAdapter(it, name.checked("name")) }

    /**
     * Writes what was trained, the pending update applied, as an adapter's files, whole or not at all. Changes no state.
     *
     * @param target the folder ([AdapterFormat.PEFT]) or the file ([AdapterFormat.GGUF]).
     * @param outtype of a GGUF file's numbers.
     * @param replace what is at [target] gives way.
     * @throws ZoException.InvalidArgument the bundle trains no adapter of floats, [target] exists or cannot be written, or
     *   numbers are not finite or beyond the type.
     * @throws ZoException.Bundle the bundle has no names of llama.cpp for its layers; the message says why.
     */
    fun exportAdapter(
        target: File,
        format: AdapterFormat = AdapterFormat.PEFT,
        outtype: Outtype = Outtype.F32,
        replace: Boolean = false,
    ) = handle.call { nativeExportAdapter(it, target.path.checked("target"), format.ordinal, outtype.ordinal, replace) }

    private fun generated(
        prompt: String?,
        messages: List<Message>,
        options: GenerateOptions,
        onText: OnText?,
    ): Generation = handle.call {
        nativeGenerate(
            it, prompt, messages.map { message -> message.role.checked("role") }.toTypedArray(),
            messages.map { message -> message.content.checked("content") }.toTypedArray(),
            options.maxTokens.toLong().notNegative("maxTokens").toInt(),
            options.stop.map { stop -> stop.checked("stop") }.toTypedArray(), options.adapter?.checked("adapter"),
            options.untrained, options.temperature, options.topK.toLong().notNegative("topK").toInt(), options.topP,
            options.minP, options.repetitionPenalty, options.seed.toLong(), options.keep, options.sliding, onText,
        )
    }

    /** The state slot with this name. */
    fun slot(name: String): SlotInfo = handle.call { slotOf(it, name) }

    /**
     * A slot's values, row-major: those of a float16 slot exactly, those of integers not.
     *
     * @throws ZoException.InvalidArgument no such slot, integers, or a gradient that there is not.
     */
    fun readSlot(name: String, values: SlotValues = SlotValues.FINISHED): FloatArray = handle.call {
        nativeReadSlot(it, name.checked("slot"), values.ordinal, slotOf(it, name).elements)
    }

    /** A slot of any [Dtype] as its bytes lie in memory; gradients do not pass so. */
    fun readSlotBytes(name: String, values: SlotValues = SlotValues.FINISHED): ByteArray = handle.call {
        nativeReadSlotBytes(it, name.checked("slot"), values.ordinal, slotOf(it, name).bytes)
    }

    /** Replaces a slot's initial values (an imported adapter), before the first step; a float16 slot rounds them. */
    fun writeSlot(name: String, values: FloatArray) =
        handle.call { nativeWriteSlot(it, name.checked("slot"), values) }

    /** [writeSlot] for a slot of any [Dtype]. */
    fun writeSlotBytes(name: String, bytes: ByteArray) =
        handle.call { nativeWriteSlotBytes(it, name.checked("slot"), bytes) }

    /**
     * A slot as the initial values and the first [updates] records alone give it.
     *
     * @throws ZoException.InvalidArgument more updates than the run has, or a first-order method's, whose records do not
     *   tell.
     */
    fun replaySlot(name: String, updates: Long): FloatArray = handle.call {
        nativeReplaySlot(it, name.checked("slot"), updates.notNegative("updates"), slotOf(it, name).elements)
    }

    /** [replaySlot] for a slot of any [Dtype]. */
    fun replaySlotBytes(name: String, updates: Long): ByteArray = handle.call {
        nativeReplaySlotBytes(it, name.checked("slot"), updates.notNegative("updates"), slotOf(it, name).bytes)
    }

    /** Record [index] of the trajectory log, below [SessionInfo.steps]. */
    fun record(index: Long): TrajectoryRecord = handle.call { nativeRecord(it, index.notNegative("index")) }

    /**
     * Writes a snapshot and syncs the log.
     *
     * @throws ZoException.State no state is attached, or it cannot be written.
     */
    fun save() = handle.call(::nativeSave)

    /** Frees the session and releases its state. Closing twice is allowed. */
    override fun close() = handle.close()

    companion object {
        /**
         * Opens a bundle.
         *
         * @param bundle the bundle's folder.
         * @param threads of the engine; 0 leaves the choice to it.
         * @param verify whether files are hashed before they are used; sizes are always compared.
         * @param cache folder of packed weights, on Android one below `Context.cacheDir`; empty: none; null: the one
         *   that the environment names.
         * @param trustedKeys public keys, as the lines of minisign's .pub files, of which one must have signed the bundle;
         *   null: any bundle. An app that ships a key opens nothing else.
         * @param engineName which of the bundle's engines ([BundleEngines]) runs its programs; null: its own.
         * @throws ZoException.Bundle missing, altered, of another version, or signed by none of the keys.
         * @throws ZoException.Engine the engine is not there, or has no device; [BundleEngines.insteadOf] says which may be chosen.
         * @throws ZoException.InvalidArgument no key in the list, an engine without programs in the bundle, or something else.
         */
        fun open(
            bundle: File,
            threads: Int = 0,
            verify: Boolean = true,
            cache: String? = null,
            trustedKeys: List<String>? = null,
            engineName: String? = null,
        ): TrainingSession {
            Library.load()
            val count = threads.toLong().notNegative("threads").toInt()
            return TrainingSession(
                nativeOpen(
                    bundle.path.checked("bundle"), count, verify, cache?.checked("cache"),
                    trustedKeys?.joinToString("\n")?.checked("trustedKeys"), engineName?.checked("engineName"),
                ),
            )
        }

        private fun slotsOf(session: Long): List<SlotInfo> =
            List(nativeSlotCount(session)) { nativeSlot(session, it) }

        private fun slotOf(session: Long, name: String): SlotInfo = nativeFindSlot(session, name.checked("slot"))

        @JvmStatic private external fun nativeOpen(
            bundle: String, threads: Int, verify: Boolean, cache: String?, trustedKeys: String?, engineName: String?,
        ): Long

        @JvmStatic private external fun nativeCancel(session: Long)
        @JvmStatic private external fun nativeClose(session: Long)
        @JvmStatic private external fun nativeInfo(session: Long): SessionInfo
        @JvmStatic private external fun nativeSlotCount(session: Long): Int
        @JvmStatic private external fun nativeSlot(session: Long, index: Int): SlotInfo
        @JvmStatic private external fun nativeFindSlot(session: Long, name: String): SlotInfo
        @JvmStatic private external fun nativeRun(session: Long): Run
        @JvmStatic private external fun nativeStep(session: Long, dataset: Long, indices: LongArray): StepResult
        @JvmStatic private external fun nativeEvaluate(session: Long, dataset: Long): Evaluation
        @JvmStatic private external fun nativeRecord(session: Long, index: Long): TrajectoryRecord
        @JvmStatic private external fun nativeSave(session: Long)
        @JvmStatic private external fun nativeForget(session: Long)
        @JvmStatic private external fun nativeLoadAdapter(session: Long, name: String, folder: String)
        @JvmStatic
        private external fun nativeExportAdapter(
            session: Long, target: String, format: Int, outtype: Int, replace: Boolean,
        )

        @JvmStatic private external fun nativeDropAdapter(session: Long, name: String)
        @JvmStatic private external fun nativeAdapter(session: Long, index: Int): String?

        @JvmStatic
        private external fun nativeGenerate(
            session: Long, prompt: String?, roles: Array<String>, contents: Array<String>, maxTokens: Int,
            stop: Array<String>, adapter: String?, untrained: Boolean, temperature: Double, topK: Int, topP: Double,
            minP: Double, repetitionPenalty: Double, seed: Long, keep: Boolean, sliding: Boolean, onText: OnText?,
        ): Generation

        @JvmStatic
        private external fun nativeAttach(
            session: Long, state: String, readOnly: Boolean, hasSeed: Boolean, seed: Long, recover: Boolean,
            changeSettings: Boolean,
        )

        @JvmStatic
        private external fun nativeConfigure(
            session: Long, schedule: Int, loss: Int, batch: Int, accumulate: Int, lr: Double, eps: Double, seed: Long,
            totalSteps: Long, momentum: Double, weightDecay: Double, clip: Double, checkpointEvery: Int,
            difference: Int, warmup: Int, dpoBeta: Double, orpoBeta: Double,
            choices: Int, pack: Boolean, keepMb: Int, cachePrefixMb: Int,
        )

        @JvmStatic
        private external fun nativeTrain(session: Long, dataset: Long, totalSteps: Long, onProgress: OnProgress?)

        @JvmStatic
        private external fun nativeReadSlot(session: Long, name: String, which: Int, elements: Long): FloatArray

        @JvmStatic
        private external fun nativeReadSlotBytes(session: Long, name: String, which: Int, bytes: Long): ByteArray

        @JvmStatic
        private external fun nativeReplaySlot(session: Long, name: String, updates: Long, elements: Long): FloatArray

        @JvmStatic
        private external fun nativeReplaySlotBytes(session: Long, name: String, updates: Long, bytes: Long): ByteArray

        @JvmStatic private external fun nativeWriteSlot(session: Long, name: String, values: FloatArray)
        @JvmStatic private external fun nativeWriteSlotBytes(session: Long, name: String, bytes: ByteArray)
    }
}
