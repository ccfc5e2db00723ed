package zoexport.session

import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/**
 * A handle of the library: one caller at a time, none after [close].
 *
 * @param address the handle.
 * @param what it is of, for messages.
 * @param free frees it.
 */
internal class Handle(private var address: Long, private val what: String, private val free: (Long) -> Unit) :
    AutoCloseable {
    private val lock = ReentrantLock()

    // Held while the address goes, and by what need not wait for the call that runs.
    private val gate = Any()

    /** Runs [action] with the address. The action must not keep it. */
    fun <T> call(action: (Long) -> T): T = alone {
        if (address == 0L) {
            throw ZoException.InvalidArgument(what, "a call after close", "an open one", "Open another one.")
        }
        action(address)
    }

    /** Runs a quick [action] beside the call that runs; null, and nothing, after [close]. */
    fun <T> beside(action: (Long) -> T): T? = synchronized(gate) { if (address != 0L) action(address) else null }

    /** Waits for a call that runs, then frees the handle. Closing twice is allowed. */
    override fun close() = alone {
        val freed = address
        synchronized(gate) { address = 0L }
        if (freed != 0L) free(freed)
    }

    private fun <T> alone(action: () -> T): T {
        // The lock would let its own thread in again: a progress callback could close the session that runs it.
        if (lock.isHeldByCurrentThread) {
            throw ZoException.InvalidArgument(
                what, "a call from within a call", "one call at a time", "Let the progress callback return first.",
            )
        }
        return lock.withLock(action)
    }
}
