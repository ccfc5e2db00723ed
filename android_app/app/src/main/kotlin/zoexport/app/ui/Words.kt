package zoexport.app.ui

import android.content.Context
import zoexport.app.R
import zoexport.session.Evaluation
import zoexport.session.JobView
import zoexport.session.Phase
import zoexport.session.Reason

// Texts of the screen and the notification.

/** Returns the phase of a job in a few words. */
fun Context.title(view: JobView): String = when (view.phase) {
    Phase.IDLE -> getString(R.string.state_idle)
    Phase.PREPARING -> getString(R.string.state_preparing)
    Phase.EVALUATING -> getString(R.string.state_evaluating)
    Phase.TRAINING -> getString(R.string.state_training, view.step, view.steps)
    Phase.FAILED -> getString(R.string.state_failed)
    Phase.DONE -> getString(R.string.state_done, view.step)
    Phase.WAITING, Phase.PAUSED -> getString(
        when (view.reason) {
            Reason.NONE, Reason.ASKED -> R.string.state_paused
            Reason.HEAT -> R.string.state_hot
            Reason.BATTERY -> R.string.state_battery
            Reason.DISK -> R.string.state_disk
            Reason.MEMORY -> R.string.state_memory
            Reason.BACKGROUND -> R.string.state_background
        },
    )
}

/** Lists the numbers of the run, one per line. */
fun Context.numbers(view: JobView): String = listOfNotNull(
    view.loss?.let { getString(R.string.loss, it) },
    view.secondsLeft?.let { getString(R.string.time_left, (it / 60).toLong(), (it % 60).toLong()) },
    view.anonymousBytes.takeIf { it > 0 }?.let { getString(R.string.memory, it / 1_000_000) },
    view.celsius?.let { getString(R.string.temperature, it) },
    view.shortened.takeIf { it > 0 }?.let { getString(R.string.shortened, it, view.examples) },
    view.before?.let { getString(R.string.before, told(it)) },
    view.after?.let { getString(R.string.after, told(it)) },
    view.bestStep?.let { getString(R.string.best_step, it) },
).joinToString("\n")

private fun Context.told(evaluation: Evaluation): String = evaluation.accuracy
    ?.let { getString(R.string.evaluation_accuracy, evaluation.loss, 100 * it) }
    ?: getString(R.string.evaluation, evaluation.loss)
