package zoexport.app

import android.app.Application
import java.io.File
import zoexport.app.device.AndroidDevice
import zoexport.app.training.Conditions
import zoexport.app.training.TrainingJob
import zoexport.app.training.TrainingModel
import zoexport.app.background.WorkLauncher

/** Holds the one training run, which outlives activities; WorkManager's worker and the screen share it. */
class ZoApplication : Application() {
    /** Where `zoexport device push --app` puts bundles. */
    val bundles: File get() = File(getExternalFilesDir(null), "bundles")

    val model: TrainingModel by lazy {
        val conditions = Conditions(AndroidDevice(this))
        val job = TrainingJob(conditions, cacheDir.resolve("packed").path)
        TrainingModel(filesDir, job, conditions, WorkLauncher(this))
    }
}
