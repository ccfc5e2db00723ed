package zoexport.app.background

import android.content.Context
import androidx.work.Constraints
import androidx.work.ExistingWorkPolicy
import androidx.work.OneTimeWorkRequestBuilder
import androidx.work.WorkManager
import zoexport.app.training.Launcher

/** WorkManager keeps the work over the end of the process and a restart of the phone, and starts it again. */
class WorkLauncher(private val context: Context) : Launcher {
    override fun launch(whenIdle: Boolean) {
        val constraints = Constraints.Builder().setRequiresCharging(whenIdle).setRequiresDeviceIdle(whenIdle).build()
        val request = OneTimeWorkRequestBuilder<TrainingWorker>().setConstraints(constraints).build()
        WorkManager.getInstance(context).enqueueUniqueWork(NAME, ExistingWorkPolicy.REPLACE, request)
    }

    override fun stop() {
        WorkManager.getInstance(context).cancelUniqueWork(NAME)
    }

    private companion object {
        const val NAME = "training"
    }
}
