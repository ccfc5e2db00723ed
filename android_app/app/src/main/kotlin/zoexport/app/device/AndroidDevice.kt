package zoexport.app.device

import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.os.BatteryManager
import android.os.StatFs
import java.io.File
import zoexport.app.training.Device

/** What the system says of battery and storage. */
class AndroidDevice(private val context: Context) : Device {
    override fun celsius(): Double? =
        battery()?.getIntExtra(BatteryManager.EXTRA_TEMPERATURE, UNKNOWN)?.takeIf { it != UNKNOWN }?.let { it / 10.0 }

    override fun freeBytes(folder: File): Long {
        val existing = generateSequence(folder) { it.parentFile }.first { it.exists() }
        return StatFs(existing.path).availableBytes
    }

    override fun batteryPercent(): Int? {
        val status = battery() ?: return null
        val level = status.getIntExtra(BatteryManager.EXTRA_LEVEL, UNKNOWN)
        val scale = status.getIntExtra(BatteryManager.EXTRA_SCALE, UNKNOWN)
        return if (level < 0 || scale <= 0) null else level * 100 / scale
    }

    override fun charging(): Boolean =
        context.getSystemService(BatteryManager::class.java).isCharging

    /** The last broadcast, which stays: without a receiver nothing is registered. */
    private fun battery(): Intent? =
        context.registerReceiver(null, IntentFilter(Intent.ACTION_BATTERY_CHANGED))

    private companion object {
        const val UNKNOWN = -1_000_000
    }
}
