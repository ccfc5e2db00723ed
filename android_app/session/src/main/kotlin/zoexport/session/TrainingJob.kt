package zoexport.session

import java.io.File

/** What the device says of itself; null: not known. */
class Conditions(
    /** 0 (nominal) to 3 (critical), as Android's thermal status has them up to "severe". */
    val heat: Int? = null,
    /** Degrees Celsius of the battery. */
    val celsius: Double? = null,
    /** The battery's charge, 0 to 1. */
    val battery: Double? = null,
    val charging: Boolean? = null,
    /** On the disk, where the job's folder is. */
    val freeBytes: Long? = null,
    /** That the app may still take before the system ends it. */
    val memoryBytes: Long? = null,
) {
    internal fun packed(): DoubleArray = doubleArrayOf(
        heat.packed(), celsius.packed(), battery.packed(), (charging?.compareTo(false)).packed(), freeBytes.packed(),
        memoryBytes.packed(),
    )

    private fun Number?.packed() = this?.toDouble() ?: Double.NaN
}

/**
 * What is to be trained.
 *
 * @property data examples as JSON Lines (docs/cli.md).
 * @property steps in total, those of an earlier run of the same state included.
 * @property lr null: that of the run, or of the bundle.
 * @property heldOut examples to evaluate on, also while it trains; null: [data], and not meanwhile.
 * @property evaluate before the first step, and of what is kept of the run.
 * @property evalEvery of [heldOut]: steps from one evaluation to the next; null: as the run has it, or a tenth of all.
 * @property patience likewise: evaluations in a row without a lower loss, after which training ends; null: as the run has it,
 *   or never.
 * @property keep likewise: whose values [TrainingJob.session] gives; null: as the run has it, or the best.
 * @property engineName which of the bundle's engines ([BundleEngines]) takes all runs of the request, also in other processes; null:
 *   the bundle's own. A state goes on with either.
 */
data class JobRequest(
    val bundle: File,
    val data: File,
    val steps: Long,
    val lr: Double? = null,
    val heldOut: File? = null,
    val evaluate: Boolean = true,
    val evalEvery: Int? = null,
    val patience: Int? = null,
    val keep: Keep? = null,
    val engineName: String? = null,
) {
    internal constructor(
        bundle: String, data: String, heldOut: String, steps: Long, lr: Double, evaluate: Boolean, evalEvery: Int,
        patience: Int, keep: Int, engineName: String,
    ) : this(
        File(bundle), File(data), steps, lr.takeIf { it != 0.0 }, heldOut.takeIf { it.isNotEmpty() }?.let(::File), evaluate,
        evalEvery.takeIf { it != 0 }, patience.takeIf { it != 0 }, Keep.entries.getOrNull(keep - 1),
        engineName.takeIf { it.isNotEmpty() },
    )
}

/** The last step's values, or those of the evaluation with the lowest loss; in the order of the ABI's numbers, from 1. */
enum class Keep { LAST, BEST }

/** What is meant where the bundle's state has steps of other examples or another rate; in the order of the ABI's numbers. */
enum class Answer { ASK, CONTINUE, ANEW }

/** Where a job is; in the order of the ABI's numbers. */
enum class Phase { IDLE, PREPARING, EVALUATING, TRAINING, WAITING, PAUSED, FAILED, DONE }

/** Why a job waits or is paused; in the order of the ABI's numbers. */
enum class Reason { NONE, ASKED, HEAT, BATTERY, DISK, MEMORY, BACKGROUND }

/** What a screen shows of a job (docs/jobs.md); null: not known. */
class JobView internal constructor(
    phase: Int,
    reason: Int,
    val step: Long,
    val steps: Long,
    val examples: Long,
    val shortened: Long,
    loss: Double,
    secondsLeft: Double,
    celsius: Double,
    val anonymousBytes: Long,
    val before: Evaluation?,
    val after: Evaluation?,
    bestStep: Long,
) {
    /** That of the lowest loss on held-out examples ([TrainingJob.evaluations]). */
    val bestStep: Long? = bestStep.takeIf { it >= 0 }
    val phase: Phase = Phase.entries[phase]
    val reason: Reason = Reason.entries[reason]
    val loss: Double? = loss.known()
    val secondsLeft: Double? = secondsLeft.known()
    val celsius: Double? = celsius.known()

    private fun Double.known() = takeUnless { it.isNaN() }
}

/** [loss] is the mean over the steps up to [step] since the point before. */
data class LossPoint(val step: Long, val loss: Double)

/** An example that a person typed: a prompt and its completion, or a conversation, whose last message is learned. */
class Typed private constructor(internal val texts: List<String>, internal val isChat: Boolean) {
    constructor(prompt: String, completion: String) : this(listOf(prompt, completion), false)

    constructor(messages: List<Message>) : this(messages.flatMap { listOf(it.role, it.content) }, true)
}

/**
 * One fine-tuning in a folder of its own: what was asked for, the bundles' states, and a run that waits, pauses and goes on
 * in another process (docs/jobs.md). All but [run] and [start] may be called beside them.
 *
 * @param cache the folder of packed weights, and [trustedKeys], as [TrainingSession.open] takes them.
 */
class TrainingJob(folder: File, private val cache: String? = null, trustedKeys: List<String>? = null) : AutoCloseable {
    private val keys = trustedKeys?.joinToString("\n")?.checked("trustedKeys")
    private val handle: Handle

    init {
        Library.load()
        handle = Handle(nativeOpen(folder.path.checked("folder")), "job", ::nativeClose)
    }

    val view: JobView? get() = handle.beside(::nativeView)

    /** The request; null where there is none. */
    val request: JobRequest? get() = handle.beside(::nativeRequest)

    /** Why the job failed, waits or is paused. */
    val problem: ZoException? get() = handle.beside(::nativeProblem)

    /** The losses of the run for a chart, at most 400 points. */
    val losses: List<LossPoint>
        get() = handle.beside(::nativeLosses)?.toList().orEmpty().chunked(2) { (step, loss) -> LossPoint(step.toLong(), loss) }

    /** What the run found on its held-out examples so far, by steps. */
    val evaluations: List<StepEvaluation>
        get() = generateSequence(0) { it + 1 }.map { index -> handle.beside { nativeEvaluated(it, index) } }
            .takeWhile { it != null }.filterNotNull().toList()

    /**
     * Checks and keeps a request, for [run]; bundle and examples are read. On failure the job is as it was.
     *
     * @throws ZoException.Question the state has steps of something else, or all of them, and [answer] is [Answer.ASK].
     */
    fun start(request: JobRequest, answer: Answer = Answer.ASK) = handle.call {
        nativeStart(
            it, request.bundle.path.checked("bundle"), request.data.path.checked("data"),
            request.heldOut?.path?.checked("heldOut"), request.steps.notNegative("steps"), request.lr ?: 0.0,
            request.evaluate, counted(request.evalEvery, "evalEvery"), counted(request.patience, "patience"),
            request.keep?.ordinal?.plus(1) ?: 0, request.engineName?.checked("engineName"), answer.ordinal, cache, keys,
        )
    }

    /**
     * Trains until the job is done, paused or cancelled. What the callbacks throw pauses the job, and comes out of here.
     *
     * @param conditions asked at least once for every step.
     * @param changed called where [view] has something new.
     * @param pollSeconds how often the device is looked at while the job waits.
     * @throws ZoException it failed; what was reached is saved.
     */
    fun run(conditions: () -> Conditions, pollSeconds: Double = 30.0, changed: () -> Unit = {}) = handle.call {
        nativeRun(it, Listener(conditions, changed), pollSeconds, cache, keys)
    }

    /** Ends the [run] that runs after its step, saved. */
    fun pause(reason: Reason = Reason.ASKED) {
        handle.beside { nativePause(it, reason.ordinal) }
    }

    /** Drops the request; its state stays. A [run] that runs ends after its step. */
    fun cancel() {
        handle.beside(::nativeCancel)
    }

    /** Drops the request, and removes the state of its bundle; refused while the job runs. */
    fun discard() {
        handle.beside(::nativeDiscard)
    }

    /** The request's bundle with what was trained so far, to generate, evaluate or export. The caller closes it. */
    fun session(): TrainingSession = TrainingSession(
        handle.beside { nativeSession(it, cache, keys) }
            ?: throw ZoException.InvalidArgument("job", "a call after close", "an open one", "Open another one."),
    )

    override fun close() = handle.close()

    /** What JNI calls. */
    private class Listener(private val look: () -> Conditions, private val show: () -> Unit) {
        @Suppress("unused")
        fun conditions(): DoubleArray = look().packed()

        @Suppress("unused")
        fun changed() = show()
    }

    companion object {
        /**
         * Writes examples that a person typed as a data file, whole or not at all.
         *
         * @param append after the lines of the file that is there; else in place of it.
         * @throws ZoException.Data an example that could not be learned, by its number; the file stays as it was.
         */
        fun write(file: File, examples: List<Typed>, append: Boolean = false) {
            Library.load()
            nativeWrite(
                file.path.checked("file"),
                Array(examples.size) { index -> examples[index].texts.map { it.checked("examples") }.toTypedArray() },
                BooleanArray(examples.size) { examples[it].isChat }, append,
            )
        }

        private fun counted(value: Int?, where: String): Int = (value ?: 0).toLong().notNegative(where).toInt()

        @JvmStatic private external fun nativeOpen(folder: String): Long
        @JvmStatic private external fun nativeClose(job: Long)
        @JvmStatic private external fun nativePause(job: Long, reason: Int)
        @JvmStatic private external fun nativeCancel(job: Long)
        @JvmStatic private external fun nativeDiscard(job: Long)
        @JvmStatic private external fun nativeView(job: Long): JobView
        @JvmStatic private external fun nativeLosses(job: Long): DoubleArray
        @JvmStatic private external fun nativeEvaluated(job: Long, index: Int): StepEvaluation?
        @JvmStatic private external fun nativeProblem(job: Long): ZoException?
        @JvmStatic private external fun nativeRequest(job: Long): JobRequest?
        @JvmStatic private external fun nativeSession(job: Long, cache: String?, keys: String?): Long

        @JvmStatic
        private external fun nativeStart(
            job: Long, bundle: String, data: String, heldOut: String?, steps: Long, lr: Double, evaluate: Boolean,
            evalEvery: Int, patience: Int, keep: Int, engineName: String?, answer: Int, cache: String?, keys: String?,
        )

        @JvmStatic
        private external fun nativeWrite(file: String, examples: Array<Array<String>>, chats: BooleanArray, append: Boolean)

        @JvmStatic
        private external fun nativeRun(job: Long, listener: Any, pollSeconds: Double, cache: String?, keys: String?)
    }
}
