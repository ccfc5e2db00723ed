package zoexport.session

import java.io.File
import org.json.JSONArray
import org.json.JSONObject

/**
 * Reports the condition of the device; null: not known. [heat] is 0 (nominal) to 3 (critical), [celsius] the temperature of
 * the battery, [battery] its charge (0 to 1). [memoryBytes] is the memory that the app may still take.
 */
class Conditions(
    val heat: Int? = null, val celsius: Double? = null, val battery: Double? = null, val charging: Boolean? = null,
    val freeBytes: Long? = null, val memoryBytes: Long? = null,
)

/**
 * Describes what to train: options of the kind `job` (graphs/schema/settings.schema.json). [steps] include those of an
 * earlier run of the same state. [settings] are those of the run by key, such as `lr`. With [heldOut] it also evaluates
 * during training. The state continues with any [engineName].
 */
data class JobRequest(
    val bundle: File, val data: File, val steps: Long, val settings: Map<String, Any> = emptyMap(),
    val heldOut: File? = null, val evaluate: Boolean = true, val evalEvery: Int? = null, val patience: Int? = null,
    val keep: Keep? = null, val engineName: String? = null,
) {
    internal constructor(json: JSONObject) : this(
        File(json.getString("bundle")), File(json.getString("data")), json.getLong("steps"),
        json.optJSONObject("settings")?.settings().orEmpty(), json.text("held_out")?.let(::File),
        json.optBoolean("evaluate"), json.double("eval_every")?.toInt(), json.double("patience")?.toInt(),
        json.text("keep")?.let { Keep.valueOf(it.uppercase()) }, json.text("engine"),
    )

    internal fun json(answer: Answer) = options(
        "bundle" to bundle, "data" to data, "steps" to steps, "settings" to settings, "held_out" to heldOut,
        "evaluate" to evaluate, "eval_every" to evalEvery, "patience" to patience, "keep" to keep,
        "engine" to engineName, "answer" to answer,
    )
}

/** Answers a [ZoException.Question]: continue the state with the new request, or begin anew. */
enum class Answer { ASK, CONTINUE, RESTART }

/** Says where a job is. */
enum class Phase { IDLE, PREPARING, EVALUATING, TRAINING, WAITING, PAUSED, FAILED, DONE }

/** Says why a job waits or is paused. */
enum class Reason { NONE, ASKED, HEAT, BATTERY, DISK, MEMORY, BACKGROUND }

/**
 * Holds what a screen shows of a job (docs/jobs.md); null: not known. [part] is the share of the examples that are read or
 * evaluated; [evaluations] are those on validation examples, and [bestStep] had the lowest loss of them.
 */
class JobView internal constructor(json: JSONObject) {
    val phase: Phase = json.entry("phase")
    val reason: Reason = json.entry("reason")
    val step: Long = json.getLong("step")
    val steps: Long = json.getLong("steps")
    val examples: Long = json.getLong("examples")
    val shortened: Long = json.getLong("shortened")
    val loss: Double? = json.double("loss")
    val secondsLeft: Double? = json.double("seconds_left")
    val celsius: Double? = json.double("celsius")
    val anonymousBytes: Long = json.optLong("anonymous_bytes")
    val before: Evaluation? = json.optJSONObject("before")?.let(::Evaluation)
    val after: Evaluation? = json.optJSONObject("after")?.let(::Evaluation)
    val part: Double? = json.double("part")
    val bestStep: Long? = json.double("best_step")?.toLong()
    val evaluations: List<StepEvaluation> = json.getJSONArray("evaluations").each(::StepEvaluation)
}

/** Holds a point of a chart: [loss] is the mean over the steps up to [step] since the point before. */
data class LossPoint(val step: Long, val loss: Double)

/** Holds an example that a user typed: a prompt with its completion, or a conversation that the assistant ends. */
class Typed private constructor(internal val json: Map<String, Any>) {
    constructor(prompt: String, completion: String) : this(mapOf("prompt" to prompt, "completion" to completion))

    constructor(messages: List<Message>) : this(mapOf("messages" to messages.map { it.json }))
}

/**
 * Manages one fine-tuning in a folder of its own: the request, the states of bundles, and a run that waits, pauses and
 * continues in another process (docs/jobs.md). Everything but [run] and [start] may be called beside them. [cache] and
 * [trustedKeys] are for all sessions of the job, as in [TrainingSession.open].
 */
class TrainingJob(folder: File, cache: String? = null, trustedKeys: List<String>? = null) : AutoCloseable {
    private val handle = Native.openJob(folder.path, options("packed_weights" to cache, "trusted_keys" to trustedKeys))
        .let { Handle(it, "job", Native::closeJob) }

    /** The job as a screen shows it; null after [close]. */
    val view: JobView? get() = handle.beside { JobView(JSONObject(Native.jobView(it))) }

    /** The request; null if there is none. */
    val request: JobRequest?
        get() = handle.beside(Native::jobRequest)?.takeIf { it != "null" }?.let { JobRequest(parsed(it)) }

    /** The reason why the job failed, waits or is paused. */
    val problem: ZoException? get() = handle.beside(Native::jobProblem)

    /** The losses of the run for a chart, at most 400 points. */
    val losses: List<LossPoint>
        get() = JSONArray(handle.beside(Native::jobLosses) ?: "[]")
            .items { getJSONArray(it).run { LossPoint(getLong(0), getDouble(1)) } }

    /**
     * Checks and stores a request for [run]; it reads bundle and examples. On failure the job is unchanged. Throws
     * [ZoException.Question] if [answer] is [Answer.ASK] and the state has steps of something else, or all of them.
     */
    fun start(request: JobRequest, answer: Answer = Answer.ASK) = handle.call { Native.startJob(it, request.json(answer)) }

    /**
     * Trains until the job is done, paused or cancelled. An exception of a callback pauses the job and passes through.
     * Throws if the job failed; progress is saved.
     *
     * @param conditions reports the device, at least once per step.
     * @param limits when the job waits, by key (`limits` in graphs/schema/settings.schema.json).
     * @param changed is called when [view] has changed.
     */
    fun run(conditions: () -> Conditions, limits: Map<String, Any> = emptyMap(), changed: () -> Unit = {}) {
        val listener = object : Listener() {
            override fun onConditions(now: Long): Boolean {
                val known = conditions()
                Native.setConditions(
                    now, known.heat ?: -1, known.charging?.compareTo(false) ?: -1, known.celsius ?: Double.NaN,
                    known.battery ?: Double.NaN, known.freeBytes ?: -1, known.memoryBytes ?: -1,
                )
                return false
            }

            override fun onChanged(): Boolean = changed().let { false }
        }
        handle.call { Native.runJob(it, json(limits), listener) }
    }

    /** Ends a running [run] after its step, saved. */
    fun pause(reason: Reason = Reason.ASKED) {
        handle.beside { Native.pauseJob(it, reason.name.lowercase()) }
    }

    /** Drops the request; its state stays. A running [run] ends after its step. */
    fun cancel() {
        handle.beside(Native::cancelJob)
    }

    /** Drops the request and removes the state of its bundle; refused while the job runs. */
    fun discard() {
        handle.beside(Native::discardJob)
    }

    /** Opens the request's bundle with what was trained so far, to generate, evaluate or export. The caller closes it. */
    fun session(): TrainingSession = TrainingSession(handle.beside(Native::jobSession) ?: throw handle.closed())

    override fun close() = handle.close()

    companion object {
        /** Writes or appends examples that a user typed, completely or not at all. Refuses those that cannot be learned. */
        fun write(file: File, examples: List<Typed>, append: Boolean = false) =
            Native.writeTyped(file.path, json(examples.map { it.json }), append)
    }
}
