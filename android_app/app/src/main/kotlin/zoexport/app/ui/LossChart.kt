package zoexport.app.ui

import androidx.compose.foundation.Canvas
import androidx.compose.material3.MaterialTheme
import androidx.compose.runtime.Composable
import androidx.compose.ui.Modifier
import androidx.compose.ui.geometry.Offset
import androidx.compose.ui.graphics.Path
import androidx.compose.ui.graphics.drawscope.Stroke
import androidx.compose.ui.unit.dp
import zoexport.app.training.LossPoint

/** Losses over steps, from zero to the largest. */
@Composable
fun LossChart(points: List<LossPoint>, modifier: Modifier = Modifier) {
    val line = MaterialTheme.colorScheme.primary
    val axis = MaterialTheme.colorScheme.outline
    Canvas(modifier) {
        val most = points.maxOf { it.loss }.coerceAtLeast(1e-9)
        val steps = (points.last().step - points.first().step).coerceAtLeast(1)
        val path = Path()
        for ((index, point) in points.withIndex()) {
            val x = (point.step - points.first().step) / steps.toFloat() * size.width
            val y = (1 - point.loss / most).toFloat() * size.height
            if (index == 0) path.moveTo(x, y) else path.lineTo(x, y)
        }
        drawLine(axis, Offset(0f, size.height), Offset(size.width, size.height), 1.dp.toPx())
        drawPath(path, line, style = Stroke(2.dp.toPx()))
    }
}
