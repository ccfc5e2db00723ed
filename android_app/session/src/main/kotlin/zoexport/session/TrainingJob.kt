package zoexport.session

import java.io.File
import org.json.JSONArray
import org.json.JSONObject

/** Reports the condition of the device (`zo_conditions`); null: not known. [heat] is 0 (nominal) to 3 (critical). */
class Conditions(
    val heat: Int? = null, val celsius: Double? = null, val battery: Double? = null, val charging: Boolean? = null,
    val freeBytes: Long? = null, val memoryBytes: Long? = null,
)

/** Describes what to train: options of the kind `job`. [steps] include those of an earlier run of the same state. */
data class JobRequest(
    val bundle: File, val data: File, val steps: Long, val settings: Map<String, Any> = emptyMap(),
    val heldOut: File? = null, val evaluate: Boolean = true, val evalEvery: Int? = null, val patience: Int? = null,
    val keep: Keep? = null, val engineName: String? = null,
) {
    internal constructor(json: JSONObject) : this(
        json.of("bundle"), json.of("data"), json.of("steps"), json.optJSONObject("settings")?.settings().orEmpty(),
        json.of("held_out"), json.optBoolean("evaluate"), json.of("eval_every"), json.of("patience"), json.of("keep"),
        json.of("engine"),
    )

    internal fun json(answer: Answer) = options(
        "bundle" to bundle, "data" to data, "steps" to steps, "settings" to settings, "held_out" to heldOut,
        "evaluate" to evaluate, "eval_every" to evalEvery, "patience" to patience, "keep" to keep,
        "engine" to engineName, "answer" to answer,
    )
}

/** Answers a [ZoException.Question]: continue the state with the new request, or start again. */
enum class Answer { ASK, CONTINUE, RESTART }
enum class Phase { IDLE, PREPARING, EVALUATING, TRAINING, WAITING, PAUSED, FAILED, DONE }
enum class Reason { NONE, ASKED, HEAT, BATTERY, DISK, MEMORY, BACKGROUND }

/** Holds what a screen shows of a job (`zo_job_view`); null: not known. */
class JobView internal constructor(
    json: JSONObject, val phase: Phase = json.of("phase"), val reason: Reason = json.of("reason"),
    val step: Long = json.of("step"), val steps: Long = json.of("steps"), val examples: Long = json.of("examples"),
    val shortened: Long = json.of("shortened"), val loss: Double? = json.of("loss"), val part: Double? = json.of("part"),
    val secondsLeft: Double? = json.of("seconds_left"), val celsius: Double? = json.of("celsius"),
    val anonymousBytes: Long = json.of<Long?>("anonymous_bytes") ?: 0,
    val before: Evaluation? = json.optJSONObject("before")?.let { Evaluation(it) },
    val after: Evaluation? = json.optJSONObject("after")?.let { Evaluation(it) },
    /** The step of the lowest loss in [evaluations], which are on validation examples. */
    val bestStep: Long? = json.of("best_step"),
    val evaluations: List<StepEvaluation> = list(json.getString("evaluations"), ::StepEvaluation),
    /** Says that the bundle's own engine failed and its fallback trains; else empty. */
    val notice: String = json.of("notice"),
)

/** Holds a point of a chart: [loss] is the mean over the steps up to [step] since the point before. */
data class LossPoint(val step: Long, val loss: Double)

/** Holds an example that a user typed: a prompt with its completion, or a conversation that the assistant ends. */
class Typed private constructor(internal val json: Map<String, Any>) {
    constructor(prompt: String, completion: String) : this(mapOf("prompt" to prompt, "completion" to completion))
    constructor(messages: List<Message>) : this(mapOf("messages" to messages.map { it.json }))
}

/**
 * Manages one fine-tuning in a folder of its own, which waits, pauses and continues in another process (docs/android.md,
 * `job.h`). Everything but [run] and [start] may be called during them. The other parameters are those of
 * [TrainingSession.open], for all sessions of the job.
 */
class TrainingJob(folder: File, cache: String? = null, trustedKeys: List<String>? = null) : AutoCloseable {
    private val handle = Native.openJob(folder.path, options("cache" to cache, "trusted_keys" to trustedKeys))
        .let { Handle(it, "job", Native::closeJob) }

    /** The job as a screen shows it; null after [close]. */
    val view: JobView? get() = handle.beside { JobView(JSONObject(Native.jobView(it))) }
    val request: JobRequest?
        get() = handle.beside(Native::jobRequest)?.takeIf { it != "null" }?.let { JobRequest(parsed(it)) }

    /** The reason why the job failed, waits or is paused. */
    val problem: ZoException? get() = handle.beside(Native::jobProblem)

    /** The losses of the run for a chart, at most 400 points. */
    val losses: List<LossPoint>
        get() = JSONArray(handle.beside(Native::jobLosses) ?: "[]").items { getJSONArray(it) }
            .map { LossPoint(it.getLong(0), it.getDouble(1)) }

    /** Checks and stores a request for [run]. On failure, [ZoException.Question] among them, the job is unchanged. */
    fun start(request: JobRequest, answer: Answer = Answer.ASK) = handle.call { Native.startJob(it, request.json(answer)) }

    /**
     * Trains until the job is done, paused or cancelled; throws if it failed, with its progress saved. An exception of a
     * callback pauses the job and passes through. [conditions] reports the device at least once per step, [changed] follows
     * [view], and [limits] are options of that kind.
     */
    fun run(conditions: () -> Conditions, limits: Map<String, Any> = emptyMap(), changed: () -> Unit = {}) =
        handle.call { Native.runJob(it, json(limits), Listener(conditions = conditions, changed = changed)) }

    /** Ends a [run] after its step, saved; [cancel] drops the request too, and [discard], at rest, the state. */
    fun pause(reason: Reason = Reason.ASKED) = handle.beside { Native.pauseJob(it, reason.name.lowercase()) } ?: Unit
    fun cancel() = handle.beside(Native::cancelJob) ?: Unit
    fun discard() = handle.beside(Native::discardJob) ?: Unit

    /** Opens the request's bundle with what was trained so far, to generate, evaluate or export. The caller closes it. */
    fun session(): TrainingSession = TrainingSession(handle.beside(Native::jobSession) ?: throw handle.closed())

    override fun close() = handle.close()

    companion object {
        /** Writes or appends examples that a user typed, completely or not at all. Refuses those that cannot be learned. */
        fun write(file: File, examples: List<Typed>, append: Boolean = false) =
            Native.writeTyped(file.path, json(examples.map { it.json }), append)
    }
}
