package zoexport.app.background

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.app.PendingIntent
import android.content.Context
import android.content.Intent
import android.content.pm.ServiceInfo
import androidx.core.app.NotificationCompat
import androidx.work.CoroutineWorker
import androidx.work.ForegroundInfo
import androidx.work.WorkerParameters
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import zoexport.app.R
import zoexport.app.ZoApplication
import zoexport.app.training.RunState
import zoexport.app.ui.MainActivity

/** Trains as long as the system lets it; cancelled, it ends after a step, saved, and WorkManager starts it again. */
class TrainingWorker(context: Context, parameters: WorkerParameters) : CoroutineWorker(context, parameters) {
    private val model = (context.applicationContext as ZoApplication).model

    override suspend fun doWork(): Result = coroutineScope {
        val shown = launch { show() }
        model.train()
        shown.cancel()
        if (model.screen.value.run is RunState.Failed) Result.failure() else Result.success()
    }

    override suspend fun getForegroundInfo(): ForegroundInfo = foreground(model.screen.value.run)

    /**
     * The notification follows the run, at most once a second: the system drops what comes faster. A StateFlow skips what
     * lies between.
     */
    private suspend fun show() {
        try {
            model.screen.collect {
                setForeground(foreground(it.run))
                delay(1000)
            }
        } catch (_: IllegalStateException) {
            // In the background a service may not be started: the work goes on without, for some minutes at a time.
        }
    }

    private fun foreground(run: RunState): ForegroundInfo =
        ForegroundInfo(NOTIFICATION, notification(run), ServiceInfo.FOREGROUND_SERVICE_TYPE_SPECIAL_USE)

    private fun notification(run: RunState): Notification {
        val context = applicationContext
        val title = context.getString(R.string.channel)
        val channel = NotificationChannel(CHANNEL, title, NotificationManager.IMPORTANCE_LOW)
        context.getSystemService(NotificationManager::class.java).createNotificationChannel(channel)
        val open = PendingIntent.getActivity(
            context, 0, Intent(context, MainActivity::class.java), PendingIntent.FLAG_IMMUTABLE,
        )
        val builder = NotificationCompat.Builder(context, CHANNEL)
            .setSmallIcon(android.R.drawable.stat_notify_sync)
            .setContentTitle(title)
            .setContentIntent(open)
            .setOngoing(true)
        if (run is RunState.Running) {
            val (step, total) = run.progress.step to run.progress.total
            builder.setContentText(context.getString(R.string.state_running, step, total))
            builder.setProgress(total.toInt(), step.toInt(), false)
        }
        return builder.build()
    }

    private companion object {
        const val CHANNEL = "training"
        const val NOTIFICATION = 1
    }
}
