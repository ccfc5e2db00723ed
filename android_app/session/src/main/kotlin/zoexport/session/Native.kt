package zoexport.session

/** Calls the C ABI (session.h, job.h). Options and results are JSON; handles and numbers are as in C. */
internal object Native {
    private const val ABI_VERSION = 3

    init {
        System.loadLibrary("zoexport_jni")
        val found = "version ${abiVersion()} of its interface"
        if (abiVersion() != ABI_VERSION) {
            throw ZoException.Internal("libzoexport", found, "version $ABI_VERSION", "Build the app again.")
        }
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
internal open class Listener(private val part: OnPart = { _, _ -> false }) {
    fun onPart(done: Long, total: Long): Boolean = part(done, total)
    open fun onStep(
        step: Long, total: Long, loss: Double, lr: Double, seconds: Double, rssBytes: Long, anonymousBytes: Long,
    ): Boolean = false
    open fun onJson(json: String): Boolean = false
    open fun onToken(token: Long): Boolean = false
    open fun onText(piece: String): Boolean = false
    open fun onConditions(now: Long): Boolean = false
    open fun onChanged(): Boolean = false
}

/** Receives the progress of a call without steps, in bytes or examples; true ends the call. */
typealias OnPart = (done: Long, total: Long) -> Boolean
