package zoexport.session

import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/** Owns a handle of the library. Admits one caller at a time, and none after [close]; messages call it [what]. */
internal class Handle(private var address: Long, private val what: String, private val free: (Long) -> Unit) {
    private val lock = ReentrantLock()

    // Held while the address changes, and by calls that need not wait for the running one.
    private val gate = Any()

    /** Runs [action] with the address, which it must not keep. */
    fun <T> call(action: (Long) -> T): T = alone {
        if (address == 0L) throw closed()
        action(address)
    }

    /** Runs a quick [action] beside the running call. Does nothing after [close] and returns null. */
    fun <T> beside(action: (Long) -> T): T? = synchronized(gate) { if (address != 0L) action(address) else null }

    /** Waits for the running call, then frees the handle. Closing twice is allowed. */
    fun close() = alone {
        val freed = address
        synchronized(gate) { address = 0L }
        if (freed != 0L) free(freed)
    }

    fun closed() = ZoException.InvalidArgument(what, "a call after close", "an open one", "Open another one.")

    private fun <T> alone(action: () -> T): T {
        // The lock would admit its own thread again: a progress callback could close the session that runs it.
        if (!lock.isHeldByCurrentThread) return lock.withLock(action)
        val fix = "Let the progress callback return first."
        throw ZoException.InvalidArgument(what, "a call from within a call", "one call at a time", fix)
    }
}
