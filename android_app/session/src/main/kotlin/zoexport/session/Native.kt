package zoexport.session

import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock
import org.json.JSONObject

/** Calls the C ABI (session.h, job.h). Options and results are JSON; handles and numbers are as in C. */
internal object Native {
    private const val ABI_VERSION = 3

    init {
        System.loadLibrary("zoexport_jni")
        if (abiVersion() != ABI_VERSION) throw ZoException.Internal(
            "libzoexport", "version ${abiVersion()} of its interface", "version $ABI_VERSION", "Build the app again.",
        )
    }

    private external fun abiVersion(): Int
    external fun unpack(file: String, folder: String, options: String, listener: Listener)
    external fun manifest(bundle: String, options: String): String
    external fun open(bundle: String, options: String): Long
    external fun close(session: Long)
    external fun info(session: Long): String
    external fun slots(session: Long): String
    external fun attach(session: Long, folder: String, options: String)
    external fun settings(session: Long): String
    external fun configure(session: Long, settings: String)
    external fun newDataset(): Long
    external fun freeDataset(dataset: Long)
    external fun datasetSize(dataset: Long): Long
    external fun addExample(dataset: Long, lengths: LongArray, tokens: LongArray, labels: LongArray, target: Long)
    external fun digest(dataset: Long): String
    external fun load(dataset: Long, path: String)
    external fun step(session: Long, dataset: Long, indices: LongArray): DoubleArray
    external fun train(session: Long, dataset: Long, heldOut: Long, options: String, listener: Listener)
    external fun evaluations(session: Long): String
    external fun cancel(session: Long)
    external fun evaluate(session: Long, dataset: Long, listener: Listener): String
    external fun generate(session: Long, options: String, listener: Listener): String
    external fun forget(session: Long)
    external fun loadAdapter(session: Long, name: String, folder: String)
    external fun dropAdapter(session: Long, name: String)
    external fun exportAdapter(session: Long, options: String, path: String)
    external fun readSlot(session: Long, name: String, which: Int, size: Long): ByteArray
    external fun replaySlot(session: Long, name: String, updates: Long, size: Long): ByteArray
    external fun writeSlot(session: Long, name: String, values: ByteArray)
    external fun record(session: Long, index: Long, queries: Int): DoubleArray
    external fun save(session: Long)
    external fun openTokenizer(bundle: String, options: String): Long
    external fun closeTokenizer(tokenizer: Long)
    external fun read(dataset: Long, tokenizer: Long, path: String, options: String, listener: Listener): String
    external fun words(seed: Long, block: Int, tensorId: Int, query: Int, step: Int): DoubleArray
    external fun noise(signs: Boolean, seed: Long, tensor: Int, query: Int, step: Int, first: Long, count: Int): DoubleArray
    external fun permutation(seed: Long, epoch: Int, count: Int): DoubleArray
    external fun writeTyped(path: String, examples: String, append: Boolean)
    external fun openJob(folder: String, options: String): Long
    external fun closeJob(job: Long)
    external fun startJob(job: Long, request: String)
    external fun runJob(job: Long, limits: String, listener: Listener)
    external fun setConditions(
        now: Long, heat: Int, charging: Int, celsius: Double, battery: Double, freeBytes: Long, memoryBytes: Long,
    )
    external fun pauseJob(job: Long, reason: String)
    external fun cancelJob(job: Long)
    external fun discardJob(job: Long)
    external fun jobView(job: Long): String
    external fun jobLosses(job: Long): String
    external fun jobRequest(job: Long): String
    external fun jobProblem(job: Long): ZoException?
    external fun jobSession(job: Long): Long
}

/** Receives the callbacks of one call, on its thread; true ends the call. Native code finds the methods by name. */
internal class Listener(
    private val part: OnPart = { _, _ -> false }, private val step: (StepProgress) -> Boolean = { false },
    private val json: (JSONObject) -> Boolean = { false }, private val token: (Long) -> Unit = {},
    private val text: (String) -> Boolean = { false }, private val conditions: () -> Conditions = { Conditions() },
    private val changed: () -> Unit = {},
) {
    fun onPart(done: Long, total: Long): Boolean = part(done, total)
    fun onStep(
        step: Long, total: Long, loss: Double, learningRate: Double, seconds: Double, rssBytes: Long, anonymousBytes: Long,
    ): Boolean = this.step(StepProgress(step, total, loss, learningRate, seconds, rssBytes, anonymousBytes))
    fun onJson(text: String): Boolean = json(JSONObject(text))
    fun onToken(next: Long): Boolean = token(next).let { false }
    fun onText(piece: String): Boolean = text(piece)
    fun onConditions(target: Long): Boolean = conditions().run {
        Native.setConditions(
            target, heat ?: -1, charging?.compareTo(false) ?: -1, celsius ?: Double.NaN, battery ?: Double.NaN,
            freeBytes ?: -1, memoryBytes ?: -1,
        )
        false
    }
    fun onChanged(): Boolean = changed().let { false }
}

/** Receives the progress of a call without steps, in bytes or examples; true ends the call. */
typealias OnPart = (done: Long, total: Long) -> Boolean

/** Owns a handle of the library. Admits one caller at a time, and none after [close]; messages call it [what]. */
internal class Handle(private var address: Long, private val what: String, private val free: (Long) -> Unit) {
    private val lock = ReentrantLock()
    private val gate = Any() // held while the address changes, and by calls that need not wait for the running one

    /** Runs [action] with the address, which it must not keep. */
    fun <T> call(action: (Long) -> T): T = alone {
        if (address == 0L) throw closed()
        action(address)
    }

    /** Runs a quick [action] during the running call. Does nothing after [close] and returns null. */
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
