package zoexport.app.ui

import android.content.Context
import android.graphics.Canvas
import android.graphics.Paint
import android.graphics.Path
import android.view.View
import zoexport.app.R
import zoexport.session.LossPoint
import zoexport.session.StepEvaluation

/** Draws losses over steps, from zero to the largest; losses on held-out examples have dots. */
class LossChart(context: Context) : View(context) {
    private val line = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        style = Paint.Style.STROKE
        strokeWidth = 2 * resources.displayMetrics.density
        color = context.getColor(R.color.accent)
    }
    private var losses: List<LossPoint> = emptyList()
    private var heldOut: List<LossPoint> = emptyList()

    fun show(losses: List<LossPoint>, evaluations: List<StepEvaluation>) {
        this.losses = losses
        heldOut = evaluations.map { LossPoint(it.step, it.loss) }
        contentDescription = listOfNotNull(
            losses.lastOrNull()?.let { context.getString(R.string.loss, it.loss) },
            heldOut.lastOrNull()?.let { context.getString(R.string.held_out_loss, it.loss) },
        ).joinToString("\n").ifEmpty { null }
        invalidate()
    }

    override fun onDraw(canvas: Canvas) {
        val points = losses + heldOut
        if (points.size < 2) return
        val most = points.maxOf { it.loss }.coerceAtLeast(1e-9)
        val first = points.minOf { it.step }
        val steps = (points.maxOf { it.step } - first).coerceAtLeast(1).toFloat()
        for (series in listOf(losses, heldOut)) {
            val path = Path()
            for ((index, point) in series.withIndex()) {
                val x = (point.step - first) / steps * width
                val y = (1 - point.loss / most).toFloat() * height
                if (index == 0) path.moveTo(x, y) else path.lineTo(x, y)
                if (series === heldOut) canvas.drawCircle(x, y, 2 * line.strokeWidth, line)
            }
            canvas.drawPath(path, line)
        }
    }
}
