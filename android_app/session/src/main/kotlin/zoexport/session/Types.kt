package zoexport.session

import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.json.JSONObject

/** Describes a bundle and its state. */
class SessionInfo internal constructor(
    json: JSONObject, val bundleId: String = json.of("bundle_id"), val method: String = json.of("method"),
    val target: String = json.of("target"), val engine: String = json.of("engine"), val rows: Int = json.of("rows"),
    val maxLength: Int = json.of("max_length"), val copies: Int = json.of("copies"),
    val numQueries: Int = json.of("num_queries"), val maxLabels: Int = json.of("max_labels"),
    val seed: ULong = json.of("seed"), val steps: Long = json.of("steps"),
    val adapters: List<String> = json.getJSONArray("adapters").items { getString(it) },
)

/** Names the type of a tensor's elements; [bytes] is the size of one. */
enum class Dtype(val bytes: Int) {
    FLOAT32(4), INT64(8), UINT8(1), BFLOAT16(2), INT8(1), UINT32(4), FLOAT16(2), INT32(4),
}

/** Describes a state tensor of the manifest. An element of a trained [Dtype.UINT8] tensor holds two integers of 4 bits. */
class SlotInfo internal constructor(
    json: JSONObject, val name: String = json.of("name"), val role: String = json.of("role"),
    val module: String = json.of("module"), val tensorId: UInt = json.getLong("tensor_id").toUInt(),
    val shape: LongArray = json.getJSONArray("shape").items { getLong(it) }.toLongArray(),
    val dtype: Dtype = json.of("dtype"),
) {
    val elements: Long get() = shape.fold(1L, Long::times)
    private val isFloat: Boolean get() = dtype == Dtype.FLOAT32 || dtype == Dtype.FLOAT16

    /** The size of its values for [TrainingSession.readSlotBytes]. */
    val bytes: Long get() = elements * if (isFloat) 4 else dtype.bytes

    internal fun floats(bytes: ByteArray): FloatArray {
        if (!isFloat) throw ZoException.InvalidArgument("slot $name", "elements of $dtype", "floats", "Read it as bytes.")
        val floats = ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder()).asFloatBuffer()
        return FloatArray(floats.remaining()).also(floats::get)
    }
}

/** Selects values: as the last step evaluated them, with the pending update applied, or the last gradient by them. */
enum class SlotValues { CURRENT, FINISHED, GRADIENT }

/** Selects the form of an adapter, a folder for PEFT or a file for llama.cpp, and the numbers of that file. */
enum class AdapterFormat { PEFT, GGUF }
enum class Outtype { F32, F16, Q8_0 }

/** Selects the weights that readers of a state get: those of the last step, or of the best evaluation. */
enum class Keep { LAST, BEST }

/** Describes one step: `losses[2i]` and `losses[2i+1]` belong to +z_i and -z_i; a first-order method has one loss alone. */
class StepResult internal constructor(
    numbers: DoubleArray, val step: Long = numbers[0].toLong(), val loss: Double = numbers[1],
    val learningRate: Double = numbers[2], val seconds: Double = numbers[3],
    val losses: DoubleArray = numbers.copyOfRange(5, 5 + numbers[4].toInt()),
    val gradients: FloatArray = numbers.floats(5 + losses.size),
)

/** Describes a record of the trajectory log. */
class TrajectoryRecord internal constructor(
    numbers: DoubleArray, val step: Long = numbers[0].toLong(), val learningRate: Float = numbers[1].toFloat(),
    val eps: Float = numbers[2].toFloat(), val loss: Float = numbers[3].toFloat(),
    val gradients: FloatArray = numbers.floats(4),
)

/** The values of floats in the system's order. */
internal fun FloatArray.bytes(): ByteArray =
    ByteBuffer.allocate(4 * size).order(ByteOrder.nativeOrder()).also { it.asFloatBuffer().put(this) }.array()

internal fun DoubleArray.floats(first: Int) = FloatArray(size - first) { this[first + it].toFloat() }

/** Reports the step just taken, of [total]. Memory is 0 if the system does not report it. */
class StepProgress internal constructor(
    val step: Long, val total: Long, val loss: Double, val learningRate: Double, val seconds: Double, val rssBytes: Long,
    val anonymousBytes: Long,
)

/** Holds an evaluation. [accuracy] is null without choices, [margin] (of chosen over rejected) without pairs. */
class Evaluation internal constructor(
    json: JSONObject, val loss: Double = json.of<Double?>("loss") ?: Double.NaN, val accuracy: Double? = json.of("accuracy"),
    val tokenAccuracy: Double = json.of<Double?>("token_accuracy") ?: Double.NaN, val margin: Double? = json.of("margin"),
    val examples: Long = json.of("examples"),
)

/** Holds an evaluation on validation examples after [step] steps. [isBest] marks the lowest loss, step 0 excepted. */
class StepEvaluation internal constructor(
    json: JSONObject, val step: Long = json.of("step"), val loss: Double = json.of<Double?>("loss") ?: Double.NaN,
    val accuracy: Double? = json.of("accuracy"), val margin: Double? = json.of("margin"),
    val tokenAccuracy: Double = json.of<Double?>("token_accuracy") ?: Double.NaN, val isBest: Boolean = json.of("best"),
)

/** One turn of a conversation; [role] is "system", "user" or "assistant". */
class Message(val role: String, val content: String) {
    internal val json get() = mapOf("role" to role, "content" to content)
}

/** Controls generation: options of the kind `generate` (docs/export.md). By default the most likely token is taken. */
data class GenerateOptions(
    val maxNewTokens: Int = 256, val stop: List<String> = emptyList(), val adapter: String? = null,
    val untrained: Boolean = false, val temperature: Double = 0.0, val topK: Int = 0, val topP: Double = 1.0,
    val minP: Double = 0.0, val repetitionPenalty: Double = 1.0, val seed: ULong = 0u, val keep: Boolean = false,
    val sliding: Boolean = false,
) {
    internal fun json(prompt: Pair<String, Any>) = options(
        prompt, "max_new_tokens" to maxNewTokens, "stop" to stop, "adapter" to adapter, "untrained" to untrained,
        "temperature" to temperature, "top_k" to topK, "top_p" to topP, "min_p" to minP,
        "repetition_penalty" to repetitionPenalty, "seed" to seed, "keep" to keep, "sliding" to sliding,
    )
}

/** Says why generation ended. */
enum class Stop { EOS, LENGTH, CALLER, STRING }

/** Holds a generated text, which ends before a stop string; [tokens] include that string, but no stop token. */
class Generation internal constructor(
    json: JSONObject, val tokens: LongArray, val text: String = json.of("text"), val stop: Stop = json.of("stop"),
    val promptTokens: Long = json.of("prompt_tokens"), val keptTokens: Long = json.of("kept_tokens"),
    val prefillSeconds: Double = json.of("prefill_seconds"), val decodeSeconds: Double = json.of("decode_seconds"),
    val anonymousBytes: Long = json.of("anonymous_bytes"),
)

/** Reports a failure in the four parts of `zo_error`, with one type per `zo_status`. Native code makes it. */
sealed class ZoException(val where: String, val found: String, val expected: String, val fix: String) :
    RuntimeException("$where: found $found; expected $expected. $fix") {
    class InvalidArgument(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)
    class Bundle(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    class State(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    class Data(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    class Engine(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    class Diverged(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    class Cancelled(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    class Internal(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    class Question(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
}
