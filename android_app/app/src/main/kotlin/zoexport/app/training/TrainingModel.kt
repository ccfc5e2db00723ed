package zoexport.app.training

import java.io.File
import java.util.concurrent.CopyOnWriteArrayList
import zoexport.session.Answer
import zoexport.session.BundleEngines
import zoexport.session.Conditions
import zoexport.session.GenerateOptions
import zoexport.session.JobRequest
import zoexport.session.JobView
import zoexport.session.LossPoint
import zoexport.session.Message
import zoexport.session.OnText
import zoexport.session.OnUnpacked
import zoexport.session.PackedBundle
import zoexport.session.Phase
import zoexport.session.Reason
import zoexport.session.StepEvaluation
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

private val Phase.isActive: Boolean
    get() = when (this) {
        Phase.PREPARING, Phase.EVALUATING, Phase.TRAINING, Phase.WAITING -> true
        else -> false
    }

/** What the screen shows. */
class Screen(
    val bundle: File?,
    val data: File?,
    val heldOut: File?,
    val steps: Long,
    val lr: Double?,
    val view: JobView,
    val losses: List<LossPoint>,
    val evaluations: List<StepEvaluation>,
    /** Why the job failed, waits or is paused, or why a start was refused. */
    val problem: String?,
    /** What a start asked: it is to be called again with an answer. */
    val question: String?,
    /** The bundle's; null: there is no bundle, or none that can be read. */
    val engines: BundleEngines?,
    /** Which of them trains, or will when a run is started or gone on with; null: the bundle's own. */
    val engineName: String?,
    /** The one that may train in its place, after the failure that [problem] tells of. */
    val instead: String?,
) {
    val isActive: Boolean get() = view.phase.isActive

    /** A run may be started: there is all that it needs, and none under way. */
    val canStart: Boolean get() = bundle != null && data != null && steps > 0 && !isActive
    val canResume: Boolean get() = view.phase == Phase.PAUSED
}

/** A question, and what the model answers with what was trained and without it. */
class Exchange(val question: String, val trained: String, val untrained: String)

/**
 * The one job of the app: what the screen shows and what its buttons do. All rules are the session's (docs/jobs.md). Calls that
 * read bundles or examples ([start], [startInstead], [resume], [train], [ask], [writeAdapter]) take a while, and are not for the
 * main thread.
 *
 * @param folder of the app, where examples and states are kept.
 * @param cache the folder of packed weights.
 * @param trustedKeys public keys of which one must have signed a bundle; null: any bundle.
 */
class TrainingModel(
    private val folder: File,
    cache: String?,
    private val conditions: () -> Conditions,
    private val launcher: Launcher,
    private val pollSeconds: Double = 30.0,
    private val trustedKeys: List<String>? = null,
) {
    private val job = TrainingJob(folder, cache, trustedKeys)
    private val listeners = CopyOnWriteArrayList<() -> Unit>()

    @Volatile private var wanted: JobRequest? = null
    @Volatile private var bundle: File? = job.request?.bundle
    @Volatile private var data: File? = job.request?.data
    @Volatile private var heldOut: File? = job.request?.heldOut
    @Volatile private var steps: Long = job.request?.steps ?: 100
    @Volatile private var lr: Double? = job.request?.lr
    @Volatile private var engineName: String? = job.request?.engineName
    @Volatile private var engines: BundleEngines? = enginesOf(bundle)
    @Volatile private var whenCharging = false
    @Volatile private var refused: ZoException? = null

    val screen: Screen
        get() {
            val refused = refused
            val view = checkNotNull(job.view)
            val problem = refused ?: job.problem
            val used = job.request?.engineName
            val question = problem as? ZoException.Question
            return Screen(
                bundle, data, heldOut, steps, lr, view, job.losses, job.evaluations,
                problem?.message.takeIf { question == null }, question?.message, engines,
                if (view.phase.isActive) used else engineName,
                problem?.let { engines?.insteadOf(if (refused != null) engineName else used, it) },
            )
        }

    /** [listener] is called on any thread where [screen] is another one. */
    fun listen(listener: () -> Unit): AutoCloseable {
        listeners.add(listener)
        return AutoCloseable { listeners.remove(listener) }
    }

    /** @param heldOut examples to evaluate on while it trains: the best evaluation's values are those that are shared. */
    fun choose(
        bundle: File? = this.bundle,
        data: File? = this.data,
        steps: Long = this.steps,
        lr: Double? = this.lr,
        heldOut: File? = this.heldOut,
    ) {
        if (bundle != this.bundle) engineName = null
        this.bundle = bundle
        engines = enginesOf(bundle)
        this.data = data
        this.heldOut = heldOut
        this.steps = steps
        this.lr = lr
        refused = null
        tell()
    }

    /** Has [engineName] train what is started or gone on with from now on; null: the bundle's own. */
    fun chooseEngine(engineName: String?) {
        this.engineName = engineName
        refused = null
        tell()
    }

    /** Of a bundle that cannot be read, a start says why. */
    private fun enginesOf(bundle: File?): BundleEngines? = try {
        bundle?.let { BundleEngines.of(it, trustedKeys) }
    } catch (_: ZoException) {
        null
    }

    private val imports: File get() = folder.resolve("bundles")

    /** Bundles that were imported. */
    val bundles: List<File> get() = imports.listFiles { file -> file.isDirectory && !file.isHidden }.orEmpty().sorted()

    /**
     * Imports a bundle that `zoexport pack` made, in place of one of its name; it is chosen then.
     *
     * @param name of the file.
     * @return the bundle's folder.
     * @throws ZoException no packed bundle, a damaged or untrusted one, too little room, or a run of the one that would give
     *   way; nothing changes.
     */
    fun importBundle(file: File, name: String, onUnpacked: OnUnpacked? = null): File {
        val target = imports.resolve(File(name).nameWithoutExtension.trimStart('.').ifEmpty { "bundle" })
        if (screen.isActive && job.request?.bundle == target) {
            throw ZoException.InvalidArgument("bundle ${target.name}", "a run that trains it", "one at rest", "Pause it first.")
        }
        imports.mkdirs()
        PackedBundle.unpack(file, target, replace = true, trustedKeys, onUnpacked)
        choose(bundle = target)
        return target
    }

    /** Likewise of a computer's file: whether it was imported, and the folder, or the message's parts, a line each. */
    fun importPushed(file: File): Pair<Boolean, String> = try {
        true to importBundle(file, file.name).path
    } catch (error: ZoException) {
        false to listOf(error.where, error.found, error.expected, error.fix).joinToString("\n")
    }

    /** The conversation that is being typed. */
    @Volatile var typedTurns: List<Message> = emptyList()
        private set

    /** Adds a turn to the conversation that is being typed; [system], where it is not empty, begins it. */
    fun typeTurn(user: String, assistant: String, system: String = "") {
        val begin = if (typedTurns.isEmpty() && system.isNotEmpty()) listOf(Message("system", system)) else typedTurns
        typedTurns = begin + Message("user", user) + Message("assistant", assistant)
        tell()
    }

    /** Takes the conversation that was typed as an example. */
    fun typeChat() {
        type(Typed(typedTurns))
        typedTurns = emptyList()
        tell()
    }

    /** Takes an example that the user typed. It is added to those of a file, which is chosen then. */
    fun type(example: Typed) {
        TrainingJob.write(typed, listOf(example), append = true)
        choose(data = typed)
    }

    private val typed: File get() = folder.resolve("typed.jsonl")

    /** Starts the run that the screen describes. What is refused or asked is on the screen. */
    fun start(answer: Answer = Answer.ASK, whenCharging: Boolean = false) {
        if (!screen.canStart) return
        val asked = JobRequest(
            checkNotNull(bundle), checkNotNull(data), steps, lr, heldOut, engineName = engineName,
        )
        start(asked, answer, whenCharging)
    }

    /** Starts what has failed once more, with the engine that the screen offers in its place and from now on. */
    fun startInstead() {
        chooseEngine(screen.instead ?: return)
        start(whenCharging = whenCharging)
    }

    private fun start(asked: JobRequest, answer: Answer, whenCharging: Boolean) {
        this.whenCharging = whenCharging
        refused = null
        try {
            job.start(asked, answer)
            talk = emptyList()
            launcher.launch(whenCharging)
        } catch (error: ZoException) {
            refused = error
        }
        tell()
    }

    /** Goes on with a run that is paused, also one of another process, and with the engine that is chosen now. */
    fun resume() {
        val asked = job.request?.takeIf { screen.canResume } ?: return
        if (asked.engineName == engineName) {
            launcher.launch(whenCharging = false)
        } else {
            start(asked.copy(engineName = engineName), Answer.ASK, whenCharging = false)
        }
    }

    /** Ends the run after its step, saved. */
    fun pause(reason: Reason = Reason.ASKED) {
        job.pause(reason)
        if (reason == Reason.ASKED) launcher.stop()
    }

    /** Ends the run after its step. Its state stays: it can be shared, and another start goes on from it. */
    fun cancel() {
        job.cancel()
        launcher.stop()
        tell()
    }

    /** Removes what was trained and the examples that were typed. Only while nothing runs. */
    fun discard() {
        if (screen.isActive) return
        job.discard()
        data = null
        heldOut = null
        talk = emptyList()
        typed.delete()
        tell()
    }

    /** Trains what was started, until it is done, paused or failed. */
    fun train() {
        if (job.request == null) return
        refused = null
        try {
            job.run(conditions, pollSeconds, ::tell)
        } catch (_: ZoException) {
            tell() // the job's own problem
        }
    }

    /** What [action] makes of the bundle with what was trained so far. */
    fun <T> withSession(action: (TrainingSession) -> T): T = job.session().use(action)

    /** What was asked and answered. */
    @Volatile var talk: List<Exchange> = emptyList()
        private set

    /**
     * Asks the model with what was trained, and without it. Where it has a chat template, what was asked before comes first, each
     * time with the answers of the same side; else a question stands alone.
     *
     * @param onText gets the answers piece by piece; true ends the one that the piece is of.
     */
    fun ask(question: String, maxTokens: Int = 256, onText: (Boolean, String) -> Boolean = { _, _ -> false }): Exchange =
        withSession { session ->
            val (trained, untrained) = listOf(true, false).map { which ->
                val options = GenerateOptions(maxTokens, untrained = !which)
                val listener = OnText { onText(which, it) }
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
    }

    /** Writes the trained adapter as the file to share. */
    fun writeAdapter(file: AdapterFile, folder: File): File = withSession { file.write(it, folder) }

    private fun tell() = listeners.forEach { it() }
}
