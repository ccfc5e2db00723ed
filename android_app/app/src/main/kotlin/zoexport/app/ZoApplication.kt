package zoexport.app

import android.app.Application
import android.content.ComponentCallbacks2
import zoexport.app.background.SystemLauncher
import zoexport.app.device.AndroidDevice
import zoexport.app.training.TrainingModel
import zoexport.session.Reason

/** Holds the one job, which outlives activities; the services that run it and the screen share it. */
class ZoApplication : Application() {
    val model: TrainingModel by lazy {
        val device = AndroidDevice(this)
        TrainingModel(filesDir, cacheDir.resolve("shaders").path, device::conditions, SystemLauncher(this))
    }

    /** Pauses training, which saves and closes the bundle; the user resumes it. */
    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        if (level == ComponentCallbacks2.TRIM_MEMORY_RUNNING_CRITICAL || level == ComponentCallbacks2.TRIM_MEMORY_COMPLETE) {
            model.pause(Reason.MEMORY)
        }
    }
}
