import java.io.File
import java.util.zip.ZipFile
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertIs
import kotlin.test.assertTrue
import kotlin.time.Duration.Companion.milliseconds
import kotlin.time.Duration.Companion.seconds
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import zoexport.app.training.Conditions
import zoexport.app.training.Device
import zoexport.app.training.Launcher
import zoexport.app.training.Limits
import zoexport.app.training.Obstacle
import zoexport.app.training.ProblemKind
import zoexport.app.training.RunState
import zoexport.app.training.Screen
import zoexport.app.training.TrainingJob
import zoexport.app.training.TrainingModel
import zoexport.app.training.Typed
import zoexport.session.ZoException

private class FakeDevice : Device {
    @Volatile var celsius: Double? = 30.0
    @Volatile var free = Long.MAX_VALUE
    @Volatile var percent: Int? = 80
    @Volatile var charging = false

    /** Called with every look at the temperature, of which there is one a step. */
    @Volatile var onLook: () -> Unit = {}

    override fun celsius(): Double? = celsius.also { onLook() }

    override fun freeBytes(folder: File): Long = free

    override fun batteryPercent(): Int? = percent

    override fun charging(): Boolean = charging
}

/** Runs the work in this process, as WorkManager does in the app. */
private class FakeLauncher : Launcher {
    lateinit var model: TrainingModel
    val scope = CoroutineScope(Dispatchers.Default)
    var work: Job? = null
    var idleAsked: Boolean? = null

    override fun launch(whenIdle: Boolean) {
        idleAsked = whenIdle
        work = scope.launch { model.train() }
    }

    override fun stop() {
        work?.cancel()
    }
}

/** What the screen shows in every state of a run, on real bundles. */
class ModelTest(private val bundles: File, private val texts: File, private val output: File) {
    private inner class App(name: String) {
        val folder = output.resolve(name).apply { mkdirs() }
        val device = FakeDevice()
        val launcher = FakeLauncher()
        val model = newModel()

        /** As a new process has it. */
        fun newModel(): TrainingModel {
            val conditions = Conditions(device, Limits())
            val job = TrainingJob(conditions, cache = "", poll = 5.milliseconds)
            return TrainingModel(folder, job, conditions, launcher).also { launcher.model = it }
        }

        fun chosen(method: String = "prge", steps: Long = STEPS): App = apply {
            model.chooseBundle(bundles.resolve(method).resolve("bundle"))
            model.chooseData(texts.resolve("data.jsonl"))
            model.setSteps(steps)
        }

        fun wait(until: (RunState) -> Boolean): Screen =
            runBlocking { withTimeout(30.seconds) { launcher.model.screen.first { until(it.run) } } }

        fun state(): File = folder.resolve("runs").listFiles()!!.single()
    }

    fun trainsToItsEndAsTheCommandLineDoes() {
        for (method in listOf("prge", "mebp")) {
            val app = App("whole-$method")
            assertEquals(RunState.Idle, app.model.screen.value.run)
            app.model.start()
            assertEquals(RunState.Idle, app.model.screen.value.run)
            app.chosen(method).model.start()
            assertEquals(false, app.model.screen.value.canStart)
            assertEquals(false, app.launcher.idleAsked)
            val running = app.wait { it is RunState.Running }
            assertEquals(30.0, running.celsius)
            val done = app.wait { it is RunState.Done }
            assertEquals(RunState.Done(STEPS), done.run)
            assertEquals(STEPS, done.losses.last().step)
            assertTrue(done.canStart && done.losses.size > 100)
            // Its bytes are compared in test_kotlin.py.
            app.state().copyRecursively(output.resolve("state-$method"))
            runBlocking { app.launcher.work!!.join() }
            assertEquals(false, app.folder.resolve("request.json").exists())
        }
    }

    fun pausedItGoesOnAlsoInAnotherProcess() {
        val app = App("paused").chosen()
        app.model.start()
        app.wait { it is RunState.Running }
        app.model.pause()
        app.wait { it == RunState.Paused(null) }
        assertTrue(app.folder.resolve("request.json").exists())
        runBlocking { app.launcher.work!!.join() }
        val again = app.newModel()
        assertEquals(RunState.Paused(null), again.screen.value.run)
        assertEquals(STEPS, again.screen.value.steps)
        again.resume()
        app.wait { it is RunState.Done }
        app.state().copyRecursively(output.resolve("state-paused"))
    }

    fun cancelledItIsIdleAndKeepsItsState() {
        val app = App("cancelled").chosen(steps = 1_000_000)
        app.model.start(whenIdle = true)
        assertEquals(true, app.launcher.idleAsked)
        app.wait { it is RunState.Running }
        app.model.cancel()
        app.wait { it == RunState.Idle }
        runBlocking { app.launcher.work!!.join() }
        assertEquals(RunState.Idle, app.newModel().screen.value.run)
        assertTrue(app.state().resolve("trajectory.log").length() > 64)
        app.chosen().launcher.model.let { model ->
            model.chooseBundle(bundles.resolve("prge/bundle"))
            model.discard()
        }
        assertEquals(0, app.folder.resolve("runs").list()!!.size)
    }

    fun heatPausesAndCoolingGoesOn() {
        val app = App("hot").chosen()
        var looks = 0
        app.device.onLook = { if (++looks == 20) app.device.celsius = 42.5 }
        app.model.start()
        val paused = app.wait { it == RunState.Paused(Obstacle.TOO_HOT) }
        assertEquals(42.5, paused.celsius)
        val steps = paused.losses.last().step
        app.device.celsius = 41.0
        Thread.sleep(50)
        assertEquals(RunState.Paused(Obstacle.TOO_HOT), app.model.screen.value.run)
        // The state is saved meanwhile.
        assertTrue(app.state().list()!!.any { it.startsWith("snapshot-") })
        app.device.celsius = 39.0
        val done = app.wait { it is RunState.Done }
        assertTrue(steps < STEPS && done.losses.last().step == STEPS)
    }

    fun aLowBatteryPausesUntilItCharges() {
        val app = App("battery").chosen()
        app.device.percent = 19
        app.model.start()
        app.wait { it == RunState.Paused(Obstacle.LOW_BATTERY) }
        app.device.charging = true
        app.wait { it is RunState.Done }
    }

    fun aPhoneThatSaysNothingTrains() {
        val app = App("silent").chosen(steps = 3)
        app.device.celsius = null
        app.device.percent = null
        app.model.start()
        assertEquals(null, app.wait { it is RunState.Done }.celsius)
    }

    fun aFullDiskFailsAndCanBeTriedAgain() {
        val app = App("full").chosen()
        app.device.free = 1_000_000
        app.model.start()
        val before = assertIs<RunState.Failed>(app.wait { it is RunState.Failed }.run).problem
        assertEquals(ProblemKind.LOW_DISK, before.kind)
        assertContains(before.message, "1 MB free; expected at least 200 MB")
        assertEquals(0, app.folder.resolve("runs").list()!!.size)
        app.device.free = Long.MAX_VALUE
        var looks = 0
        app.device.onLook = { if (++looks == 20) app.device.free = 0 }
        app.model.start()
        val during = app.wait { it is RunState.Failed }
        assertEquals(ProblemKind.LOW_DISK, (during.run as RunState.Failed).problem.kind)
        app.device.onLook = {}
        app.device.free = Long.MAX_VALUE
        assertTrue(during.canStart)
        app.model.start()
        app.wait { it is RunState.Done }
    }

    fun badBundlesAndBadDataFail() {
        val app = App("bad").chosen()
        fun failed() = assertIs<RunState.Failed>(app.model.screen.value.run).problem
        app.model.chooseBundle(output.resolve("nothing"))
        assertEquals(ProblemKind.BAD_BUNDLE, failed().kind)
        val data = output.resolve("bad.jsonl").apply { writeText("{\n") }
        app.model.chooseData(data)
        assertEquals(ProblemKind.BAD_DATA, failed().kind)
        assertContains(failed().message, "bad.jsonl:1")
        app.chosen()
        assertEquals(RunState.Idle, app.model.screen.value.run)
        // Without choices, which this bundle's loss needs: found when it is tokenized, before there is a state.
        app.model.type(listOf(Typed("a", " b")))
        app.model.start()
        assertEquals(ProblemKind.BAD_DATA, (app.wait { it is RunState.Failed }.run as RunState.Failed).problem.kind)
        assertEquals(0, app.folder.resolve("runs").list()!!.size)
        val altered = output.resolve("altered")
        bundles.resolve("prge/bundle").copyRecursively(altered)
        altered.listFiles()!!.single { it.name.endsWith(".pte") }.let { it.writeBytes(it.readBytes().copyOf(100)) }
        app.chosen().model.chooseBundle(altered)
        app.model.start()
        assertEquals(ProblemKind.BAD_BUNDLE, (app.wait { it is RunState.Failed }.run as RunState.Failed).problem.kind)
    }

    fun theAdapterIsWrittenForPeft() {
        val app = App("adapter").chosen("mebp", steps = 5)
        assertFailsWith<ZoException.State> { app.model.writeAdapter(output.resolve("none.zip")) }
        assertEquals(false, output.resolve("none.zip").exists())
        app.model.start()
        app.wait { it is RunState.Done }
        app.model.writeAdapter(output.resolve("adapter.zip"))
        app.state().copyRecursively(output.resolve("state-adapter"))
        val names = ZipFile(output.resolve("adapter.zip")).use { zip -> zip.entries().toList().map { it.name } }
        assertEquals(listOf("adapter_config.json", "adapter_model.safetensors"), names)
    }

    fun theSystemsStopIsAPause() = runBlocking {
        val app = App("stopped").chosen(steps = 1_000_000)
        app.model.start()
        app.wait { it is RunState.Running }
        app.launcher.work!!.cancelAndJoin()
        assertEquals(RunState.Paused(null), app.model.screen.value.run)
        app.model.cancel()
        assertEquals(RunState.Idle, app.model.screen.value.run)
    }

    fun tests() = mapOf(
        "model: trains to its end as the command line does" to ::trainsToItsEndAsTheCommandLineDoes,
        "model: paused, it goes on, also in another process" to ::pausedItGoesOnAlsoInAnotherProcess,
        "model: cancelled, it is idle and keeps its state" to ::cancelledItIsIdleAndKeepsItsState,
        "model: heat pauses, cooling goes on" to ::heatPausesAndCoolingGoesOn,
        "model: a low battery pauses until it charges" to ::aLowBatteryPausesUntilItCharges,
        "model: a phone that says nothing trains" to ::aPhoneThatSaysNothingTrains,
        "model: a full disk fails and can be tried again" to ::aFullDiskFailsAndCanBeTriedAgain,
        "model: bad bundles and bad data fail" to ::badBundlesAndBadDataFail,
        "model: the adapter is written for PEFT" to ::theAdapterIsWrittenForPeft,
        "model: the system's stop is a pause" to ::theSystemsStopIsAPause,
    )

    private companion object {
        /** As tests/support/text_cases.py has it. */
        const val STEPS = 250L
    }
}
