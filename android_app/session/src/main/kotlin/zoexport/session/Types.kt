package zoexport.session

import org.json.JSONObject

/** Describes a bundle and its state. [packedWeights] is the file of packed weights, or empty; [packedProblem] says why. */
class SessionInfo internal constructor(json: JSONObject) {
    val bundleId: String = json.getString("bundle_id")
    val method: String = json.getString("method")
    val target: String = json.getString("target")
    val engine: String = json.getString("engine")
    val rows: Int = json.getInt("rows")
    val seqLen: Int = json.getInt("seq_len")
    val copies: Int = json.getInt("copies")
    val queries: Int = json.getInt("queries")
    val maxLabels: Int = json.getInt("max_labels")
    val seed: ULong = json.getString("seed").toULong()
    val steps: Long = json.getLong("steps")
    val packedWeights: String = json.getString("packed_weights")
    val packedProblem: String = json.getString("packed_problem")
    val adapters: List<String> = json.getJSONArray("adapters").items { getString(it) }
}

/** Names the type of a tensor's elements; [bytes] is the size of one. */
enum class Dtype(val bytes: Int) {
    FLOAT32(4), INT64(8), UINT8(1), BFLOAT16(2), INT8(1), UINT32(4), FLOAT16(2), INT32(4),
}

/** Describes a state tensor of the manifest. An element of a trained [Dtype.UINT8] tensor holds two integers of 4 bits. */
class SlotInfo internal constructor(json: JSONObject) {
    val name: String = json.getString("name")
    val role: String = json.getString("role")
    val module: String = json.getString("module")
    val tensorId: UInt = json.getLong("tensor_id").toUInt()
    val shape: LongArray = json.getJSONArray("shape").items { getLong(it) }.toLongArray()
    val dtype: Dtype = json.entry("dtype")
    val elements: Long get() = shape.fold(1L, Long::times)
    internal val isFloat: Boolean get() = dtype == Dtype.FLOAT32 || dtype == Dtype.FLOAT16

    /** The size of its values for [TrainingSession.readSlotBytes]. */
    val bytes: Long get() = elements * if (isFloat) 4 else dtype.bytes
}

/** Selects values: as the last step evaluated them, with the pending update applied, or the last gradient by them. */
enum class SlotValues { CURRENT, FINISHED, GRADIENT }

/** Selects the form of an adapter: a folder for PEFT, or a file for llama.cpp. */
enum class AdapterFormat { PEFT, GGUF }

/** Selects the number format of a GGUF file. */
enum class Outtype { F32, F16, Q8_0 }

/** Selects the weights that readers of a state get: those of the last step, or of the best evaluation. */
enum class Keep { LAST, BEST }

/** Describes one step: `losses[2i]` and `losses[2i+1]` belong to +z_i and -z_i; a first-order method has one loss alone. */
class StepResult internal constructor(numbers: DoubleArray) {
    val step: Long = numbers[0].toLong()
    val loss: Double = numbers[1]
    val lr: Double = numbers[2]
    val seconds: Double = numbers[3]
    val losses: DoubleArray = numbers.copyOfRange(5, 5 + numbers[4].toInt())
    val gradients: FloatArray = numbers.floats(5 + losses.size)
}

/** Describes a record of the trajectory log. */
class TrajectoryRecord internal constructor(numbers: DoubleArray) {
    val step: Long = numbers[0].toLong()
    val lr: Float = numbers[1].toFloat()
    val eps: Float = numbers[2].toFloat()
    val loss: Float = numbers[3].toFloat()
    val gradients: FloatArray = numbers.floats(4)
}

internal fun DoubleArray.floats(first: Int) = FloatArray(size - first) { this[first + it].toFloat() }

/** Reports the step just taken, of [total]. Memory is 0 if the system does not report it. */
class StepProgress internal constructor(
    val step: Long, val total: Long, val loss: Double, val lr: Double, val seconds: Double, val rssBytes: Long,
    val anonymousBytes: Long,
)

/** Holds an evaluation. [accuracy] is null without choices, [margin] (of chosen over rejected) without pairs. */
class Evaluation internal constructor(json: JSONObject) {
    val loss: Double = json.double("loss") ?: Double.NaN
    val accuracy: Double? = json.double("accuracy")
    val tokenAccuracy: Double = json.double("token_accuracy") ?: Double.NaN
    val margin: Double? = json.double("margin")
    val examples: Long = json.getLong("examples")
}

/** Holds an evaluation on validation examples after [step] steps. [isBest] marks the lowest loss, step 0 excepted. */
class StepEvaluation internal constructor(json: JSONObject) {
    val step: Long = json.getLong("step")
    val loss: Double = json.double("loss") ?: Double.NaN
    val accuracy: Double? = json.double("accuracy")
    val tokenAccuracy: Double = json.double("token_accuracy") ?: Double.NaN
    val margin: Double? = json.double("margin")
    val isBest: Boolean = json.getBoolean("best")
}
