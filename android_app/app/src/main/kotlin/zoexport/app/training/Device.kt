package zoexport.app.training

import java.io.File

/** What the training asks of the phone. Android's answers are in `zoexport.app.device`, the tests have their own. */
interface Device {
    /** Degrees Celsius of the battery; null where the phone does not say. */
    fun celsius(): Double?

    /** Bytes that this app may still write where [folder] is. */
    fun freeBytes(folder: File): Long

    /** Percent; null where the phone does not say. */
    fun batteryPercent(): Int?

    fun charging(): Boolean
}

/**
 * When training waits, and when it goes on. What ends a wait is apart from what begins it, so that a run does not start
 * and stop with every step.
 *
 * @property hottest above it training waits, in degrees Celsius of the battery.
 * @property cooled at or below it training goes on.
 * @property leastFreeBytes that must be left beside what the run has, for its snapshots and scratch files.
 * @property leastBatteryPercent below it training waits for the charger.
 */
data class Limits(
    val hottest: Double = 42.0,
    val cooled: Double = 39.0,
    val leastFreeBytes: Long = 200_000_000,
    val leastBatteryPercent: Int = 20,
)

/** What keeps training from going on. All but [LOW_DISK] pass by themselves. */
enum class Obstacle { TOO_HOT, LOW_BATTERY, LOW_DISK }

/** The phone's condition against the limits. */
class Conditions(private val device: Device, val limits: Limits = Limits()) {
    fun celsius(): Double? = device.celsius()

    fun freeBytes(folder: File): Long = device.freeBytes(folder)

    /** What is in the way of taking a step; null where nothing is. */
    fun obstacle(folder: File): Obstacle? = when {
        device.freeBytes(folder) < limits.leastFreeBytes -> Obstacle.LOW_DISK
        (device.celsius() ?: 0.0) > limits.hottest -> Obstacle.TOO_HOT
        !device.charging() && (device.batteryPercent() ?: 100) < limits.leastBatteryPercent -> Obstacle.LOW_BATTERY
        else -> null
    }

    /** Whether a run that waits because of [obstacle] may go on. */
    fun passed(obstacle: Obstacle, folder: File): Boolean = when (obstacle) {
        Obstacle.TOO_HOT -> (device.celsius() ?: 0.0) <= limits.cooled
        Obstacle.LOW_BATTERY -> device.charging() || (device.batteryPercent() ?: 100) >= limits.leastBatteryPercent
        Obstacle.LOW_DISK -> device.freeBytes(folder) >= limits.leastFreeBytes
    }
}
