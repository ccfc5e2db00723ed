package zoexport.app.training

/** [loss] is the mean over the steps up to [step] that one point stands for. */
data class LossPoint(val step: Long, val loss: Double)

/**
 * The losses of a run for a chart: at most [most] points, whatever the number of steps. Where they become more, two
 * neighbours become one, their mean.
 */
class LossHistory(private val most: Int = 400) {
    private val points = ArrayList<LossPoint>()
    private var each = 1
    private var sum = 0.0
    private var count = 0

    init {
        require(most >= 2 && most % 2 == 0) { "an even number of points, not $most" }
    }

    fun add(step: Long, loss: Double) {
        sum += loss
        if (++count < each) return
        points.add(LossPoint(step, sum / count))
        sum = 0.0
        count = 0
        if (points.size < most) return
        val merged = points.chunked(2) { (first, second) -> LossPoint(second.step, (first.loss + second.loss) / 2) }
        points.clear()
        points.addAll(merged)
        each *= 2
    }

    fun snapshot(): List<LossPoint> = points.toList()

    fun clear() {
        points.clear()
        each = 1
        sum = 0.0
        count = 0
    }
}
