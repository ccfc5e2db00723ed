package zoexport.app.training

import com.google.gson.JsonObject
import java.io.File
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import zoexport.session.Dataset
import zoexport.session.ZoException

/** What the screen shows. [celsius] and [losses] are those of the last step. */
data class Screen(
    val bundle: BundleFacts? = null,
    val data: File? = null,
    val steps: Long = 100,
    val run: RunState = RunState.Idle,
    val losses: List<LossPoint> = listOf(),
    val celsius: Double? = null,
) {
    /** A run may be started: there is all that it needs, and none under way. */
    val canStart: Boolean get() = bundle != null && data != null && steps > 0 && !isActive
    val isActive: Boolean get() = run is RunState.Preparing || run is RunState.Running || run is RunState.Paused
}

/** Starts and ends the process's work that calls [TrainingModel.train]: WorkManager in the app. */
interface Launcher {
    /** @param whenIdle only while the phone charges and is idle; else now. */
    fun launch(whenIdle: Boolean)

    /** Cancels the coroutine in which [TrainingModel.train] runs, and does not start it again. */
    fun stop()
}

/** An example that the user typed. */
data class Typed(val prompt: String, val completion: String)

/**
 * The one training run of the app: what the screen shows and what its buttons do.
 *
 * @param folder of the app, where examples and states are kept.
 */
class TrainingModel(
    private val folder: File,
    private val job: TrainingJob,
    private val conditions: Conditions,
    private val launcher: Launcher,
) {
    private val store = RequestStore(folder.resolve("request.json"))
    private val history = LossHistory()
    private val alone = Mutex()
    private val shown = MutableStateFlow(restored())
    val screen: StateFlow<Screen> = shown.asStateFlow()

    /** Takes a bundle's folder; one that cannot be used is a [RunState.Failed]. */
    fun chooseBundle(bundle: File) = checked {
        val facts = BundleFacts.read(bundle)
        shown.update { it.copy(bundle = facts) }
    }

    /** Takes a JSON Lines file; one that the chosen bundle cannot use is a [RunState.Failed]. */
    fun chooseData(data: File) = checked {
        screen.value.bundle?.let { bundle -> Dataset().use { it.read(data, bundle.folder) } }
        shown.update { it.copy(data = data) }
    }

    /** Takes examples that the user typed, which are kept as a file. */
    fun type(examples: List<Typed>) {
        val file = folder.resolve("typed.jsonl")
        val lines = examples.joinToString("") { (prompt, completion) ->
            JsonObject().apply {
                addProperty("prompt", prompt)
                addProperty("completion", completion)
            }.toString() + "\n"
        }
        checked { file.replaceWith { it.writeText(lines) } }
        chooseData(file)
    }

    fun setSteps(steps: Long) = shown.update { it.copy(steps = steps) }

    /** Starts the run that the screen describes, or goes on with the state that it has. */
    fun start(whenIdle: Boolean = false) {
        val now = screen.value
        if (!now.canStart) return
        val bundle = checkNotNull(now.bundle)
        store.save(Request(bundle.folder, checkNotNull(now.data), stateOf(bundle), now.steps))
        stateOf(bundle).parentFile.mkdirs()
        history.clear()
        shown.update { it.copy(run = RunState.Preparing, losses = listOf()) }
        launcher.launch(whenIdle)
    }

    /** Ends the run after its step, saved; it can be resumed, also by another process. */
    fun pause() {
        if (!screen.value.isActive) return
        launcher.stop()
        // Where no work runs yet that could say so itself.
        shown.update { if (it.run is RunState.Preparing) it.copy(run = RunState.Paused(null)) else it }
    }

    fun resume() {
        if (screen.value.run != RunState.Paused(null)) return
        shown.update { it.copy(run = RunState.Preparing) }
        launcher.launch(whenIdle = false)
    }

    /** Ends the run after its step. Its state stays: it can be shared, and another start goes on from it. */
    fun cancel() {
        store.clear()
        launcher.stop()
        shown.update { if (it.run is RunState.Running) it else it.copy(run = RunState.Idle) }
    }

    /** Removes the chosen bundle's state, so that the next start begins anew. Only while nothing runs. */
    fun discard() {
        val now = screen.value
        if (!now.isActive) now.bundle?.let { stateOf(it).deleteRecursively() }
    }

    /**
     * Writes the chosen bundle's trained adapter ([writeAdapter]).
     *
     * @throws ZoException there is no state, or no adapter in it.
     */
    fun writeAdapter(target: File) {
        val bundle = checkNotNull(screen.value.bundle) { "no bundle was chosen" }
        writeAdapter(bundle.folder, stateOf(bundle), target)
    }

    /**
     * Trains what was started, to its end or its failure. Cancelled, it leaves a run that is paused, or idle. A call
     * waits for one that is finishing its step.
     */
    suspend fun train() = alone.withLock {
        val request = store.load() ?: return@withLock
        try {
            job.run(request).collect(::show)
            store.clear()
        } catch (error: CancellationException) {
            show(if (store.load() == null) RunState.Idle else RunState.Paused(null))
            throw error
        } catch (error: ZoException) {
            fail(error)
        } catch (error: LowDisk) {
            fail(error)
        }
    }

    private fun fail(error: Exception) {
        store.clear()
        show(RunState.Failed(Problem.of(error)))
    }

    private fun show(run: RunState) {
        if (run is RunState.Running) history.add(run.progress.step, run.progress.loss)
        shown.update { it.copy(run = run, losses = history.snapshot(), celsius = conditions.celsius()) }
    }

    private fun checked(action: () -> Unit) {
        try {
            action()
            shown.update { if (it.run is RunState.Failed) it.copy(run = RunState.Idle) else it }
        } catch (error: ZoException) {
            shown.update { it.copy(run = RunState.Failed(Problem.of(error))) }
        }
    }

    private fun stateOf(bundle: BundleFacts): File = folder.resolve("runs").resolve(bundle.id.take(16))

    /** A run that another process began is paused until the system starts its work again. */
    private fun restored(): Screen {
        val request = store.load() ?: return Screen()
        return try {
            Screen(BundleFacts.read(request.bundle), request.data, request.steps, RunState.Paused(null))
        } catch (error: ZoException) {
            Screen(run = RunState.Failed(Problem.of(error)))
        }
    }
}
