package zoexport.app.background

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.app.PendingIntent
import android.app.Service
import android.content.Intent
import android.content.pm.ServiceInfo
import android.os.Handler
import android.os.IBinder
import android.os.Looper
import kotlin.concurrent.thread
import zoexport.app.R
import zoexport.app.ZoApplication
import zoexport.app.ui.MainActivity
import zoexport.app.ui.title
import zoexport.session.Phase
import zoexport.session.Reason

/** Trains in the foreground, with a notification that follows the run. */
class TrainingService : Service() {
    private val model get() = (application as ZoApplication).model
    private val main = Handler(Looper.getMainLooper())
    private val follow = Runnable(::show)

    override fun onBind(intent: Intent): IBinder? = null

    override fun onStartCommand(intent: Intent?, flags: Int, startId: Int): Int {
        startForeground(NOTIFICATION, notification(), ServiceInfo.FOREGROUND_SERVICE_TYPE_SPECIAL_USE)
        main.post(follow)
        thread(name = "training") {
            model.train()
            stopSelf(startId)
        }
        return START_REDELIVER_INTENT
    }

    override fun onDestroy() {
        main.removeCallbacks(follow)
        model.pause(Reason.BACKGROUND)
    }

    /** Updates the notification at most once a second, as the system drops faster updates. */
    private fun show() {
        getSystemService(NotificationManager::class.java).notify(NOTIFICATION, notification())
        main.postDelayed(follow, 1000)
    }

    private fun notification(): Notification {
        val channel = NotificationChannel(CHANNEL, getString(R.string.channel), NotificationManager.IMPORTANCE_LOW)
        getSystemService(NotificationManager::class.java).createNotificationChannel(channel)
        val open = Intent(this, MainActivity::class.java)
        val view = model.screen.view
        val builder = Notification.Builder(this, CHANNEL)
            .setSmallIcon(R.drawable.icon)
            .setContentTitle(title(view))
            .setContentIntent(PendingIntent.getActivity(this, 0, open, PendingIntent.FLAG_IMMUTABLE))
            .setOngoing(true)
        if (view.phase == Phase.TRAINING) builder.setProgress(view.steps.toInt(), view.step.toInt(), false)
        return builder.build()
    }

    private companion object {
        const val CHANNEL = "training"
        const val NOTIFICATION = 1
    }
}
