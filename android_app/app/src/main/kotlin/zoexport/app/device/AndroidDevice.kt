package zoexport.app.device

import android.app.ActivityManager
import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.os.BatteryManager
import android.os.PowerManager
import android.os.StatFs
import zoexport.session.Conditions

/** Asks the system for heat, battery, storage and memory. */
class AndroidDevice(private val context: Context) {
    fun conditions(): Conditions {
        // The last broadcast, which stays: without a receiver nothing is registered.
        val battery = context.registerReceiver(null, IntentFilter(Intent.ACTION_BATTERY_CHANGED))
        fun told(key: String): Int? = battery?.getIntExtra(key, UNKNOWN)?.takeIf { it != UNKNOWN }
        val level = told(BatteryManager.EXTRA_LEVEL)
        val scale = told(BatteryManager.EXTRA_SCALE)?.takeIf { it > 0 }
        val memory = ActivityManager.MemoryInfo()
        context.getSystemService(ActivityManager::class.java).getMemoryInfo(memory)
        return Conditions(
            heat = heat(context.getSystemService(PowerManager::class.java).currentThermalStatus),
            celsius = told(BatteryManager.EXTRA_TEMPERATURE)?.let { it / 10.0 },
            battery = if (level != null && scale != null) level.toDouble() / scale else null,
            charging = context.getSystemService(BatteryManager::class.java).isCharging,
            freeBytes = StatFs(context.filesDir.path).availableBytes,
            memoryBytes = (memory.availMem - memory.threshold).coerceAtLeast(0),
        )
    }

    /** Maps to the session's four levels: "light" and "moderate" are fair, "severe" is serious, all above are critical. */
    private fun heat(status: Int): Int = when {
        status <= PowerManager.THERMAL_STATUS_NONE -> 0
        status <= PowerManager.THERMAL_STATUS_MODERATE -> 1
        status == PowerManager.THERMAL_STATUS_SEVERE -> 2
        else -> 3
    }

    private companion object {
        const val UNKNOWN = -1_000_000
    }
}
