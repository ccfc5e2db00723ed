package zoexport.app.training

import java.io.File
import java.util.concurrent.CopyOnWriteArrayList
import zoexport.session.Answer
import zoexport.session.Conditions
import zoexport.session.GenerateOptions
import zoexport.session.JobRequest
import zoexport.session.JobView
import zoexport.session.LossPoint
import zoexport.session.Message
import zoexport.session.OnPart
import zoexport.session.PackedBundle
import zoexport.session.Phase
import zoexport.session.Reason
import zoexport.session.TrainingJob
import zoexport.session.TrainingSession
import zoexport.session.Typed
import zoexport.session.ZoException

/** Starts and ends the process's work that calls [TrainingModel.train]: a service or a job of the system's in the app. */
interface Launcher {
    /** @param whenCharging only while the phone charges and is idle; else now. */
    fun launch(whenCharging: Boolean)

    /** Ends the work, whose [TrainingModel.train] returns after its step, and does not start it again. */
    fun stop()
}

/** Holds what the screen shows. */
class Screen(
    val bundle: File?, val data: File?, val heldOut: File?, val steps: Long, val learningRate: Double?, val view: JobView,
    val losses: List<LossPoint>,
    /** Why the job failed, waits or is paused, or why a start was refused. */
    val problem: String?,
    /** The question of a start, which is to be called again with an answer. */
    val question: String?,
) {
    val isActive: Boolean
        get() = view.phase in setOf(Phase.PREPARING, Phase.EVALUATING, Phase.TRAINING, Phase.WAITING)

    /** True if a run may start: nothing is missing, and none runs. */
    val canStart: Boolean get() = bundle != null && data != null && steps > 0 && !isActive
    val canResume: Boolean get() = view.phase == Phase.PAUSED
}

/** Holds a question, and the answers of the trained and the untrained model. */
class Exchange(val question: String, val trained: String, val untrained: String)

/**
 * Manages the only job of the app, behind the screen and its buttons. All rules are the session's (docs/android.md). Calls that
 * read bundles or examples ([start], [train], [ask], [writeAdapter]) take a while, and are not for the main thread.
 *
 * @param folder of the app, where examples and states are kept.
 * @param cache the folder of a GPU's shaders.
 * @param trustedKeys public keys; one of them must have signed a bundle; null: any bundle.
 */
class TrainingModel(
    private val folder: File, cache: String?, private val conditions: () -> Conditions, private val launcher: Launcher,
    private val pollSeconds: Double = 30.0, private val trustedKeys: List<String>? = null,
) {
    private val job = TrainingJob(folder, cache, trustedKeys)
    private val listeners = CopyOnWriteArrayList<() -> Unit>()

    @Volatile private var bundle: File? = job.request?.bundle
    @Volatile private var data: File? = job.request?.data
    @Volatile private var heldOut: File? = job.request?.heldOut
    @Volatile private var steps: Long = job.request?.steps ?: 100
    @Volatile private var learningRate: Double? = (job.request?.settings?.get("learning_rate") as Number?)?.toDouble()
    @Volatile private var refused: ZoException? = null

    val screen: Screen
        get() {
            val problem = refused ?: job.problem
            val question = problem as? ZoException.Question
            return Screen(
                bundle, data, heldOut, steps, learningRate, checkNotNull(job.view), job.losses,
                problem?.message.takeIf { question == null }, question?.message,
            )
        }

    /** Calls [listener], on any thread, when [screen] has changed. */
    fun listen(listener: () -> Unit): AutoCloseable {
        listeners.add(listener)
        return AutoCloseable { listeners.remove(listener) }
    }

    /** Changes the choices for the next run. With [heldOut] the weights of the best evaluation are shared. */
    fun choose(
        bundle: File? = this.bundle, data: File? = this.data, steps: Long = this.steps,
        learningRate: Double? = this.learningRate, heldOut: File? = this.heldOut,
    ) {
        this.bundle = bundle
        this.data = data
        this.heldOut = heldOut
        this.steps = steps
        this.learningRate = learningRate
        refused = null
        tell()
    }

    private val imports: File get() = folder.resolve("bundles")

    /** The imported bundles. */
    val bundles: List<File> get() = imports.listFiles { file -> file.isDirectory && !file.isHidden }.orEmpty().sorted()

    /**
     * Imports a bundle that `zoexport pack` made, replaces one of the same name, and chooses it.
     *
     * @param name of the file.
     * @return the bundle's folder.
     * @throws ZoException if the file is no bundle, is damaged or untrusted, there is too little room, or the bundle to
     *   replace is training; nothing changes.
     */
    fun importBundle(file: File, name: String, onUnpacked: OnPart = { _, _ -> false }): File {
        val target = imports.resolve(File(name).nameWithoutExtension.trimStart('.').ifEmpty { "bundle" })
        if (screen.isActive && job.request?.bundle == target) {
            throw ZoException.InvalidArgument("bundle ${target.name}", "a run that trains it", "one at rest", "Pause it first.")
        }
        imports.mkdirs()
        PackedBundle.unpack(file, target, replace = true, trustedKeys, onUnpacked)
        choose(bundle = target)
        return target
    }

    /** Imports a file that a computer brought. Returns whether it worked, and the folder, or the message in four lines. */
    fun importPushed(file: File): Pair<Boolean, String> = try {
        true to importBundle(file, file.name).path
    } catch (error: ZoException) {
        false to listOf(error.where, error.found, error.expected, error.fix).joinToString("\n")
    }

    /** The conversation that the user is typing. */
    @Volatile var typedTurns: List<Message> = emptyList()
        private set

    /** Adds a turn to the typed conversation; [system], unless it is empty, begins it. */
    fun typeTurn(user: String, assistant: String, system: String = "") {
        val begin = if (typedTurns.isEmpty() && system.isNotEmpty()) listOf(Message("system", system)) else typedTurns
        typedTurns = begin + Message("user", user) + Message("assistant", assistant)
        tell()
    }

    /** Adds the typed conversation to the examples. */
    fun typeChat() {
        type(Typed(typedTurns))
        typedTurns = emptyList()
        tell()
    }

    /** Adds a typed example to a file, and chooses that file. */
    fun type(example: Typed) {
        TrainingJob.write(typed, listOf(example), append = true)
        choose(data = typed)
    }

    private val typed: File get() = folder.resolve("typed.jsonl")

    /** Starts the run that the screen describes. A refusal or a question appears on the screen. */
    fun start(answer: Answer = Answer.ASK, whenCharging: Boolean = false) {
        if (!screen.canStart) return
        val settings = learningRate?.let { mapOf("learning_rate" to it) }.orEmpty()
        refused = null
        try {
            job.start(JobRequest(checkNotNull(bundle), checkNotNull(data), steps, settings, heldOut), answer)
            talk = emptyList()
            launcher.launch(whenCharging)
        } catch (error: ZoException) {
            refused = error
        }
        tell()
    }

    /** Resumes a paused run, also one of another process. */
    fun resume() {
        if (screen.canResume) launcher.launch(whenCharging = false)
    }

    /** Ends the run after its step, saved. */
    fun pause(reason: Reason = Reason.ASKED) {
        job.pause(reason)
        if (reason == Reason.ASKED) launcher.stop()
    }

    /** Ends the run after its step. Its state stays: it can be shared, and another start continues it. */
    fun cancel() {
        job.cancel()
        launcher.stop()
        tell()
    }

    /** Removes the trained state and the typed examples, unless a run is active. */
    fun discard() {
        if (screen.isActive) return
        job.discard()
        data = null
        heldOut = null
        talk = emptyList()
        typed.delete()
        tell()
    }

    /** Trains until the run is done, paused or failed. */
    fun train() {
        if (job.request == null) return
        refused = null
        try {
            job.run(conditions, mapOf("poll_seconds" to pollSeconds), ::tell)
        } catch (_: ZoException) {
            tell() // the job's own problem
        }
    }

    /** Runs [action] on the bundle with what was trained so far. */
    fun <T> withSession(action: (TrainingSession) -> T): T = job.session().use(action)

    /** The questions and answers so far. */
    @Volatile var talk: List<Exchange> = emptyList()
        private set

    /**
     * Asks the trained and the untrained model. With a chat template, each continues its own conversation; otherwise a
     * question stands alone.
     *
     * @param onText receives pieces of the answers, and whether the trained model wrote them; true ends that answer.
     */
    fun ask(question: String, maxNewTokens: Int = 256, onText: (Boolean, String) -> Boolean = { _, _ -> false }): Exchange =
        withSession { session ->
            val (trained, untrained) = listOf(true, false).map { which ->
                val options = GenerateOptions(maxNewTokens, untrained = !which)
                val listener = { piece: String -> onText(which, piece) }
                val before = talk.flatMap {
                    listOf(Message("user", it.question), Message("assistant", if (which) it.trained else it.untrained))
                }
                try {
                    session.generate(before + Message("user", question), options, listener)
                } catch (error: ZoException.Bundle) {
                    if (error.where != "chat") throw error
                    session.generate(question, options, listener) // no chat template
                }.text
            }
            Exchange(question, trained, untrained).also { talk = talk + it }
        }

    /** Begins a new conversation. */
    fun hush() {
        talk = emptyList()
        tell()
    }

    /** Writes the trained adapter as the file to share. */
    fun writeAdapter(file: AdapterFile, folder: File): File = withSession { file.write(it, folder) }

    private fun tell() = listeners.forEach { it() }
}
