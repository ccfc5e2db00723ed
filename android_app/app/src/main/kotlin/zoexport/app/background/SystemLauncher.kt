package zoexport.app.background

import android.app.job.JobInfo
import android.app.job.JobScheduler
import android.content.ComponentName
import android.content.Context
import android.content.Intent
import zoexport.app.training.Launcher

/** "Start" is a foreground service; "while charging" a job of the system's, which it keeps over the end of the process. */
class SystemLauncher(private val context: Context) : Launcher {
    private val scheduler get() = context.getSystemService(JobScheduler::class.java)

    override fun launch(whenCharging: Boolean) {
        if (!whenCharging) {
            scheduler.cancel(JOB)
            context.startForegroundService(service())
            return
        }
        val job = JobInfo.Builder(JOB, ComponentName(context, ChargingJob::class.java))
            .setRequiresCharging(true)
            .setRequiresDeviceIdle(true)
            .setPersisted(true)
            .build()
        scheduler.schedule(job)
    }

    override fun stop() {
        scheduler.cancel(JOB)
        context.stopService(service())
    }

    private fun service() = Intent(context, TrainingService::class.java)

    private companion object {
        const val JOB = 1
    }
}
