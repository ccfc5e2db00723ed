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

/** A state slot of the manifest. */
class SlotInfo internal constructor(
    val name: String,
    val role: String,
    val module: String,
    tensorId: Int,
    val shape: LongArray,
    val elements: Long,
) {
    val tensorId: UInt = tensorId.toUInt()
}

/** How the learning rate goes over the steps of a run; in the order of the ABI's numbers. */
enum class Schedule { CONSTANT, LINEAR, COSINE }

/** What is minimized; in the order of the ABI's numbers. */
enum class Loss { FULL, CHOICES }

/** How a run trains. [totalSteps] is the schedule's length for [TrainingSession.step]. */
data class Run(
    val schedule: Schedule,
    val loss: Loss,
    val batch: Int,
    val accumulate: Int,
    val lr: Double,
    val eps: Double,
    val seed: ULong,
    val totalSteps: Long,
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
    ) : this(Schedule.entries[schedule], Loss.entries[loss], batch, accumulate, lr, eps, seed.toULong(), totalSteps)
}

/** One step: `losses[2i]` and `losses[2i+1]` are those of +z_i and -z_i, [loss] their mean. */
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

/** [accuracy] is null where no example has choices. */
class Evaluation internal constructor(
    val loss: Double,
    accuracy: Double,
    val tokenAccuracy: Double,
    val examples: Long,
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
