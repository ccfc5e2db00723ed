package zoexport.app.background

import android.app.job.JobParameters
import android.app.job.JobService
import kotlin.concurrent.thread
import zoexport.app.ZoApplication
import zoexport.session.Phase
import zoexport.session.Reason

/** Trains while the phone charges and nobody uses it, as long as the system lets it. */
class ChargingJob : JobService() {
    private val model get() = (application as ZoApplication).model

    override fun onStartJob(parameters: JobParameters): Boolean {
        thread(name = "training") {
            model.train()
            // A paused run has steps left: the system's time was over, or memory was short.
            jobFinished(parameters, model.screen.view.phase == Phase.PAUSED)
        }
        return true
    }

    /** The charger is gone, somebody uses the phone, or the job's quota is spent: saved, and scheduled again. */
    override fun onStopJob(parameters: JobParameters): Boolean {
        model.pause(Reason.BACKGROUND)
        return true
    }
}
