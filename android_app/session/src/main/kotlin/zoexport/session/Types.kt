package zoexport.session

// What the session takes and returns. The JNI glue calls the constructors that take fields in the order of session.h.

/**
 * What a bundle and its state say of themselves. [steps] counts those taken in total; [packedWeights] is the file that
 * packed weights are mapped from, empty where there is none, and [packedProblem] why.
 */
class SessionInfo internal constructor(
    val bundleId: String,
    val method: String,
    val target: String,
    val engine: String,
    val rows: Int,
    val seqLen: Int,
    val copies: Int,
    val queries: Int,
    val maxLabels: Int,
    seed: Long,
    val steps: Long,
    val packedWeights: String,
    val packedProblem: String,
) {
    val seed: ULong = seed.toULong()
}

/** How an element lies in memory, in the order of the ABI's numbers; [bytes] of one. */
enum class Dtype(val bytes: Int) {
    FLOAT32(4), INT64(8), UINT8(1), BFLOAT16(2), INT8(1), UINT32(4), FLOAT16(2), INT32(4),
}

/** A state slot of the manifest. Of a [Dtype.UINT8] slot an element holds two integers of 4 bits. */
class SlotInfo internal constructor(
    val name: String,
    val role: String,
    val module: String,
    tensorId: Int,
    val shape: LongArray,
    val elements: Long,
    dtype: Int,
) {
    val tensorId: UInt = tensorId.toUInt()
    val dtype: Dtype = Dtype.entries[dtype]

    /** What [TrainingSession.readSlotBytes] gives. */
    val bytes: Long get() = elements * dtype.bytes
}

/** A slot's values as the last step evaluated it, those with the pending update applied, or the last gradient by it. */
enum class SlotValues { CURRENT, FINISHED, GRADIENT }

/** The files that an adapter becomes: a folder for PEFT, or a file for llama.cpp; in the order of the ABI's numbers. */
enum class AdapterFormat { PEFT, GGUF }

/** The numbers of a GGUF file; in the order of the ABI's numbers. */
enum class Outtype { F32, F16, Q8_0 }

/** How the learning rate goes over the steps of a run; in the order of the ABI's numbers. */
enum class Schedule { CONSTANT, LINEAR, COSINE }

/** What is minimized; in the order of the ABI's numbers. */
enum class Loss { FULL, CHOICES, DPO, ORPO }

/** What choices are compared by: the sum or the mean of their tokens' log-probabilities; in the order of the ABI's numbers. */
enum class Choices { SUM, MEAN }

/** The losses that a projected gradient is the difference of; in the order of the ABI's numbers. */
enum class Difference { CENTRAL, FORWARD }

/**
 * How a run trains. [warmup] is the steps over which the rate rises. [totalSteps] is the schedule's length for [TrainingSession.step]. [momentum], [weightDecay], [clip]
 * (0: none), [checkpointEvery] and [keepMb] (room for products' results that the backward pass need not compute again) are
 * of first-order methods, [difference] is of zeroth-order ones. [dpoBeta] and [orpoBeta]
 * are of a loss of pairs each, [choices] is of [Loss.CHOICES]. [pack]: whether texts fill rows, as [Dataset.read] reads them.
 * [cachePrefixMb]: room for rows as they leave the layers below the first that is trained.
 */
data class Run(
    val schedule: Schedule,
    val loss: Loss,
    val batch: Int,
    val accumulate: Int,
    val lr: Double,
    val eps: Double,
    val seed: ULong,
    val totalSteps: Long,
    val momentum: Double,
    val weightDecay: Double,
    val clip: Double,
    val checkpointEvery: Int,
    val difference: Difference,
    val warmup: Int,
    val dpoBeta: Double,
    val orpoBeta: Double,
    val choices: Choices,
    val pack: Boolean,
    val keepMb: Int,
    val cachePrefixMb: Int,
) {
    internal constructor(
        schedule: Int,
        loss: Int,
        batch: Int,
        accumulate: Int,
        lr: Double,
        eps: Double,
        seed: Long,
        totalSteps: Long,
        momentum: Double,
        weightDecay: Double,
        clip: Double,
        checkpointEvery: Int,
        difference: Int,
        warmup: Int,
        dpoBeta: Double,
        orpoBeta: Double,
        choices: Int,
        pack: Boolean,
        keepMb: Int,
        cachePrefixMb: Int,
    ) : this(
        Schedule.entries[schedule], Loss.entries[loss], batch, accumulate, lr, eps, seed.toULong(), totalSteps, momentum,
        weightDecay, clip, checkpointEvery, Difference.entries[difference], warmup, dpoBeta, orpoBeta,
        Choices.entries[choices], pack, keepMb, cachePrefixMb,
    )
}

/**
 * One step: `losses[2i]` and `losses[2i+1]` are those of +z_i and -z_i, [loss] their mean. A first-order method has one
 * loss, and no [gradients] here.
 */
class StepResult internal constructor(
    val step: Long,
    val loss: Double,
    val lr: Double,
    val seconds: Double,
    val losses: DoubleArray,
    val gradients: FloatArray,
)

/** The step just taken, of [total]. Memory is 0 where the system does not say. */
class StepProgress internal constructor(
    val step: Long,
    val total: Long,
    val loss: Double,
    val lr: Double,
    val seconds: Double,
    val rssBytes: Long,
    val anonymousBytes: Long,
)

/** Called after every step, on the thread that trains; true stops the run after saving. */
fun interface OnProgress {
    fun onProgress(progress: StepProgress): Boolean
}

/** [accuracy] is null where no example has choices, [margin] but for the losses of pairs. */
class Evaluation internal constructor(
    val loss: Double,
    accuracy: Double,
    val tokenAccuracy: Double,
    val examples: Long,
    margin: Double,
) {
    val accuracy: Double? = accuracy.takeUnless { it.isNaN() }

    /** The mean of by how much the chosen answer is preferred. */
    val margin: Double? = margin.takeUnless { it.isNaN() }
}

/** An evaluation of held-out examples after [step] steps; [isBest]: its loss is the lowest of the run so far, step 0 apart. */
class StepEvaluation internal constructor(
    val step: Long,
    val loss: Double,
    accuracy: Double,
    val tokenAccuracy: Double,
    val isBest: Boolean,
) {
    val accuracy: Double? = accuracy.takeUnless { it.isNaN() }
}

/** A record of the trajectory log. */
class TrajectoryRecord internal constructor(
    val step: Long,
    val lr: Float,
    val eps: Float,
    val loss: Float,
    val gradients: FloatArray,
)
