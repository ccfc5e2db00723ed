package zoexport.app.ui

import android.content.Context
import android.graphics.Canvas
import android.graphics.Paint
import android.graphics.Path
import android.view.View
import zoexport.app.R
import zoexport.session.LossPoint

/** Losses over steps, from zero to the largest. */
class LossChart(context: Context) : View(context) {
    private val line = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        style = Paint.Style.STROKE
        strokeWidth = 2 * resources.displayMetrics.density
        color = context.getColor(R.color.accent)
    }

    var points: List<LossPoint> = emptyList()
        set(value) {
            field = value
            contentDescription = value.lastOrNull()?.let { context.getString(R.string.loss, it.loss) }
            invalidate()
        }

    override fun onDraw(canvas: Canvas) {
        if (points.size < 2) return
        val most = points.maxOf { it.loss }.coerceAtLeast(1e-9)
        val first = points.first().step
        val steps = (points.last().step - first).toFloat()
        val path = Path()
        for ((index, point) in points.withIndex()) {
            val x = (point.step - first) / steps * width
            val y = (1 - point.loss / most).toFloat() * height
            if (index == 0) path.moveTo(x, y) else path.lineTo(x, y)
        }
        canvas.drawPath(path, line)
    }
}
