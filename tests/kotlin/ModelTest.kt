import java.io.File
import kotlin.concurrent.thread
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertTrue
import zoexport.app.training.AdapterFile
import zoexport.app.training.Launcher
import zoexport.app.training.Screen
import zoexport.app.training.TrainingModel
import zoexport.session.Answer
import zoexport.session.BundleEngines
import zoexport.session.Conditions
import zoexport.session.Dataset
import zoexport.session.Message
import zoexport.session.Phase
import zoexport.session.Reason
import zoexport.session.TrainingSession
import zoexport.session.Typed
import zoexport.session.ZoException

/** Tests the screen in every state of a run, on real bundles. */
class ModelTest(
    private val bundles: File, private val texts: File, private val gpuBundle: File, private val output: File,
) {
    /** Runs the work in this process, as a service does in the app. */
    private inner class App(name: String) : Launcher {
        val folder = output.resolve(name).apply { mkdirs() }

        @Volatile var now = Conditions(celsius = 30.0, freeBytes = Long.MAX_VALUE / 2, battery = 0.8, charging = false)

        /** Called with every look at the device, of which there is one a step. */
        @Volatile var onLook: () -> Unit = {}
        var work: Thread? = null
        var charging: Boolean? = null
        var model = newModel()

        /** As a new process has it. */
        fun newModel(): TrainingModel =
            TrainingModel(folder, cache = "", { onLook(); now }, this, pollSeconds = 0.005).also { model = it }

        override fun launch(whenCharging: Boolean) {
            charging = whenCharging
            work = thread { model.train() }
        }

        override fun stop() = Unit

        fun chosen(method: String = "prge", steps: Long = STEPS): App = apply {
            model.choose(bundles.resolve(method).resolve("bundle"), texts.resolve("data.jsonl"), steps)
        }

        fun wait(until: (Screen) -> Boolean): Screen {
            repeat(6000) {
                model.screen.let { if (until(it)) return it }
                Thread.sleep(5)
            }
            error("still ${model.screen.view.phase}, ${model.screen.problem}")
        }

        fun end(): Screen {
            work!!.join()
            return model.screen
        }

        fun state(): File = folder.resolve("states").listFiles()!!.single()
    }

    fun trainsToItsEndAsTheCommandLineDoes() {
        for (method in listOf("prge", "mebp")) {
            val app = App("whole-$method")
            app.model.start() // nothing is chosen
            assertEquals(Phase.IDLE, app.model.screen.view.phase)
            val phases = LinkedHashSet<Phase>()
            app.model.listen { phases.add(app.model.screen.view.phase) }.use {
                app.chosen(method).model.start()
                assertEquals(false, app.charging)
                app.end()
            }
            assertEquals(
                listOf(Phase.IDLE, Phase.PREPARING, Phase.EVALUATING, Phase.TRAINING, Phase.DONE),
                (phases - Phase.PAUSED).toList(),
            )
            val done = app.model.screen
            assertEquals(listOf(STEPS, STEPS), listOf(done.view.step, done.losses.last().step))
            assertEquals(30.0, done.view.celsius)
            assertTrue(done.canStart && done.losses.size > 100)
            assertEquals(DATA, assertNotNull(done.view.before).examples)
            assertNotNull(assertNotNull(done.view.after).accuracy)
            // Its bytes are compared in test_kotlin.py.
            app.state().copyRecursively(output.resolve("state-$method"))
            assertEquals(Phase.DONE, app.newModel().screen.view.phase)
        }
    }

    fun pausedItGoesOnAlsoInAnotherProcess() {
        val app = App("paused").chosen()
        app.model.start()
        app.wait { it.view.phase == Phase.TRAINING && it.view.step > 3 }
        app.model.pause()
        assertEquals(Reason.ASKED, app.end().view.reason)
        val again = app.newModel()
        assertTrue(again.screen.canResume && again.screen.steps == STEPS)
        again.resume()
        assertEquals(Phase.DONE, app.end().view.phase)
        app.state().copyRecursively(output.resolve("state-paused"))
    }

    fun cancelledItIsIdleAndKeepsItsState() {
        val app = App("cancelled").chosen(steps = 1_000_000)
        app.model.start(whenCharging = true)
        assertEquals(true, app.charging)
        app.wait { it.view.phase == Phase.TRAINING && it.view.step > 3 }
        app.model.cancel()
        assertEquals(Phase.IDLE, app.end().view.phase)
        assertTrue(app.state().resolve("trajectory.log").length() > 64)
        app.chosen().model.start()
        app.end()
        app.model.discard()
        assertEquals(0, app.folder.resolve("states").list()!!.size)
        assertEquals(null, app.model.screen.data)
    }

    fun heatPausesAndCoolingGoesOn() {
        val app = App("hot").chosen()
        var looks = 0
        app.onLook = { if (++looks == 20) app.now = Conditions(celsius = 42.5) }
        app.model.start()
        val hot = app.wait { it.view.phase == Phase.WAITING }
        assertEquals(listOf<Any?>(Reason.HEAT, 42.5), listOf(hot.view.reason, hot.view.celsius))
        assertContains(assertNotNull(hot.problem), "42.5 degrees")
        app.now = Conditions(celsius = 41.0)
        Thread.sleep(50)
        assertEquals(Phase.WAITING, app.model.screen.view.phase)
        // The state is saved meanwhile.
        assertTrue(app.state().list()!!.any { it.startsWith("snapshot-") })
        app.now = Conditions(celsius = 39.0)
        assertEquals(STEPS, app.end().view.step)
    }

    fun aLowBatteryAndAFullDiskWait() {
        val app = App("battery").chosen()
        app.now = Conditions(battery = 0.19, charging = false)
        app.model.start()
        app.wait { it.view.reason == Reason.BATTERY }
        app.now = Conditions(battery = 0.19, charging = true, freeBytes = 1_000_000)
        val full = app.wait { it.view.reason == Reason.DISK }
        assertContains(assertNotNull(full.problem), "1 MB free; expected at least 200 MB")
        app.now = Conditions() // a phone that says nothing
        assertEquals(Phase.DONE, app.end().view.phase)
    }

    fun littleMemorySavesAndPauses() {
        val app = App("memory").chosen()
        var looks = 0
        app.onLook = { if (++looks == 20) app.now = Conditions(memoryBytes = 1) }
        app.model.start()
        assertEquals(Reason.MEMORY, app.end().view.reason)
        app.now = Conditions()
        app.model.resume()
        app.wait { it.view.phase == Phase.TRAINING }
        app.model.pause(Reason.MEMORY) // as onTrimMemory asks
        assertEquals(Reason.MEMORY, app.end().view.reason)
    }

    fun badBundlesAndBadDataAreSaid() {
        val app = App("bad").chosen()
        fun said(): String = assertNotNull(app.model.screen.problem)
        app.model.choose(bundle = output.resolve("nothing"))
        app.model.start()
        assertContains(said(), "nothing")
        app.model.choose(bundle = File("${bundles.resolve("prge/bundle")}\u0000"))
        app.model.start()
        assertContains(said(), "a zero character")
        val data = output.resolve("bad.jsonl").apply { writeText("{\n") }
        app.chosen().model.choose(data = data)
        assertEquals(null, app.model.screen.problem)
        app.model.start()
        assertContains(said(), "bad.jsonl:1")
        // Without choices, which this bundle's loss needs: found when it is tokenized, before there is a state.
        app.model.type(Typed("a\"\n", " b"))
        app.model.start()
        assertContains(said(), "typed.jsonl:1")
        assertEquals(false, app.folder.resolve("states").exists())
        val altered = output.resolve("altered")
        bundles.resolve("prge/bundle").copyRecursively(altered)
        altered.listFiles()!!.single { it.name.endsWith(".pte") }.let { it.writeBytes(it.readBytes().copyOf(100)) }
        app.chosen().model.choose(bundle = altered)
        app.model.start()
        assertContains(said(), "altered")
        // An error that only a run meets.
        val moved = output.resolve("moved.jsonl").apply { writeText(texts.resolve("data.jsonl").readText()) }
        app.onLook = { moved.delete() }
        app.chosen().model.choose(data = moved)
        app.model.start()
        assertEquals(Phase.FAILED, app.end().view.phase)
        assertContains(said(), "moved.jsonl")
    }

    fun otherExamplesAreAQuestion() {
        val app = App("question").chosen(steps = 5)
        app.model.start()
        assertEquals(Phase.DONE, app.end().view.phase)
        app.model.start()
        assertContains(assertNotNull(app.model.screen.question), "5 steps")
        val other = output.resolve("other.jsonl")
        other.writeText(texts.resolve("data.jsonl").readLines().drop(1).joinToString("\n"))
        app.model.choose(data = other, steps = 8)
        assertEquals(null, app.model.screen.question)
        app.model.start()
        assertContains(assertNotNull(app.model.screen.question), "$DATA other examples")
        assertEquals(null, app.model.screen.problem)
        app.model.start(Answer.CONTINUE)
        assertEquals(8, app.end().view.step)
        app.model.choose(data = texts.resolve("data.jsonl"), steps = 4)
        app.model.start(Answer.RESTART)
        assertEquals(listOf(4L, Phase.DONE), app.end().view.let { listOf(it.step, it.phase) })
    }

    fun aPackedBundleIsImportedAndTrains() {
        val app = App("import")
        val packed = texts.resolve("prge.zobundle")
        val seen = ArrayList<Pair<Long, Long>>()
        app.model.importBundle(packed, "a name.zobundle") { done, total ->
            seen.add(done to total)
            false
        }
        assertEquals(seen.last().second, seen.last().first)
        val bundle = assertNotNull(app.model.screen.bundle)
        assertEquals("a name", bundle.name)
        // Anew, in place of the first; one that is damaged or no bundle changes nothing; a callback's own exception comes out.
        app.model.importBundle(packed, "a name.zobundle")
        val cut = output.resolve("cut.zobundle").apply { writeBytes(packed.readBytes().copyOf(5000)) }
        assertFailsWith<ZoException.Bundle> { app.model.importBundle(cut, "a name.zobundle") }
        assertFailsWith<ZoException.Cancelled> { app.model.importBundle(packed, "a name.zobundle") { _, _ -> true } }
        assertFailsWith<IllegalStateException> { app.model.importBundle(packed, "b") { _, _ -> error("mine") } }
        assertEquals(listOf(bundle), app.model.bundles)
        app.model.choose(data = texts.resolve("data.jsonl"), steps = 2)
        app.model.start()
        assertEquals(Phase.DONE, app.end().view.phase)
    }

    /** As the receiver of `zoexport device push --app` has it. */
    fun whatAComputerBringsIsImported() {
        val app = App("pushed").chosen(steps = 1_000_000)
        val packed = output.resolve("pushed.bundle.zobundle")
        texts.resolve("prge.zobundle").copyTo(packed)
        val bundle = app.folder.resolve("bundles/pushed.bundle")
        val seen = ArrayList<Int>()
        app.model.listen { seen.add(app.model.bundles.size) }.use {
            assertEquals(true to bundle.path, app.model.importPushed(packed))
        }
        assertEquals(1, seen.last())
        assertEquals(listOf(bundle), app.model.bundles)
        assertEquals(bundle, app.model.screen.bundle)
        val (imported, said) = app.model.importPushed(output.resolve("nothing.zobundle"))
        assertEquals(listOf(false, 4), listOf(imported, said.lines().size))
        assertContains(said.lines().first(), "nothing.zobundle")
        // Not while a run trains it; another one may come meanwhile.
        app.model.start()
        app.wait { it.view.phase == Phase.TRAINING }
        assertEquals("bundle pushed.bundle\na run that trains it", app.model.importPushed(packed).second.substringBeforeLast("\none"))
        val other = packed.copyTo(output.resolve("other.zobundle"))
        assertEquals(true, app.model.importPushed(other).first)
        app.model.cancel()
        app.end()
        assertEquals(true, app.model.importPushed(packed).first)
        assertEquals(2, app.model.bundles.size)
    }

    /** Typed examples are tokenized as Python does with the lines of tests/support/text_cases.py. */
    fun whatIsTypedBecomesExamples() {
        val app = App("typed").chosen("mebp", steps = 2)
        val file = app.folder.resolve("typed.jsonl")
        app.model.type(Typed("It was", " warm"))
        assertEquals(file, app.model.screen.data)
        app.model.typeTurn("How was it?", "Warm, and funny. café 🦊", "Be brief.")
        app.model.typeTurn("And the \"sea\"?\n", " Blue.", "Be brief.")
        assertEquals(listOf("system", "user", "assistant", "user", "assistant"), app.model.typedTurns.map { it.role })
        app.model.typeChat()
        assertEquals(0, app.model.typedTurns.size)
        app.newModel() // another process: what was typed is there
        app.model.typeTurn("How was it?", "so")
        app.model.typeChat()
        assertEquals(3, file.readLines().size)
        Dataset().use { found ->
            Dataset().use { expected ->
                found.read(file, bundles.resolve("mebp/bundle"))
                expected.load(texts.resolve("typed.examples.jsonl"))
                assertEquals(expected.digest, found.digest)
            }
        }
        val before = file.readText()
        for ((chat, said) in mapOf(
            emptyList<Message>() to "'messages' that is empty",
            listOf(Message("user", "a")) to "a last message from 'user'",
            listOf(Message("robot", "a")) to "robot",
        )) {
            assertContains(assertFailsWith<ZoException.Data> { app.model.type(Typed(chat)) }.found, said)
        }
        assertEquals(before, file.readText())
        app.model.discard()
        assertEquals(false, file.exists())
    }

    fun theAdapterIsWrittenForPeftAndLlamaCpp() {
        val app = App("adapter").chosen("mebp", steps = 5)
        val shared = output.resolve("shared")
        app.onLook = { app.model.pause() }
        app.model.start()
        app.end()
        for (kind in AdapterFile.entries) assertFailsWith<ZoException> { app.model.writeAdapter(kind, shared) }
        assertEquals(false, shared.exists())
        app.onLook = {}
        app.model.resume()
        app.end()
        app.state().copyRecursively(output.resolve("state-adapter"))
        repeat(2) {
            for (kind in AdapterFile.entries) assertEquals(shared.resolve(kind.fileName), app.model.writeAdapter(kind, shared))
        }
        // test_kotlin.py compares what is in them.
        assertEquals(setOf("adapter.gguf", "adapter.zip"), shared.list()!!.toSet())
        // Compiled without programs that generate.
        assertFailsWith<ZoException.Bundle> { app.model.ask("The film was") }
        assertEquals(0, app.model.talk.size)
    }

    /** There is no device: the environment names another one. */
    fun withoutAGpuTheCpuTrains() {
        val app = App("gpu")
        app.model.choose(gpuBundle, texts.resolve("data.jsonl"), steps = 2)
        app.model.start()
        app.end().run {
            assertEquals(listOf<Any?>(Phase.DONE, 2L, null), listOf(view.phase, view.step, problem))
            assertContains(view.notice, "Engine $CPU runs the programs instead.")
        }
        app.model.withSession { assertEquals(CPU, it.info.engine) }
        // An engine that is named does not give way to another one.
        TrainingSession.open(gpuBundle, cache = "", engineName = CPU).use { assertEquals(CPU, it.info.engine) }
        assertFailsWith<ZoException.Engine> { TrainingSession.open(gpuBundle, cache = "", engineName = "vulkan") }
        BundleEngines.of(gpuBundle).run { assertEquals(listOf("vulkan", CPU), listOf(own, fallback)) }
        val other = bundles.resolve("prge").resolve("bundle")
        BundleEngines.of(other).run { assertEquals(listOf(CPU, null), listOf(own, fallback)) }
        assertFailsWith<ZoException.Bundle> { BundleEngines.of(output.resolve("nothing")) }
    }

    fun tests() = mapOf(
        "model: without a GPU the CPU trains" to ::withoutAGpuTheCpuTrains,
        "model: trains to its end as the command line does" to ::trainsToItsEndAsTheCommandLineDoes,
        "model: paused, it goes on, also in another process" to ::pausedItGoesOnAlsoInAnotherProcess,
        "model: cancelled, it is idle and keeps its state" to ::cancelledItIsIdleAndKeepsItsState,
        "model: heat pauses, cooling goes on" to ::heatPausesAndCoolingGoesOn,
        "model: a low battery and a full disk wait" to ::aLowBatteryAndAFullDiskWait,
        "model: little memory saves and pauses" to ::littleMemorySavesAndPauses,
        "model: bad bundles and bad data are said" to ::badBundlesAndBadDataAreSaid,
        "model: other examples are a question" to ::otherExamplesAreAQuestion,
        "model: a packed bundle is imported and trains" to ::aPackedBundleIsImportedAndTrains,
        "model: what a computer brings is imported" to ::whatAComputerBringsIsImported,
        "model: what is typed becomes examples" to ::whatIsTypedBecomesExamples,
        "model: the adapter is written for PEFT and llama.cpp" to ::theAdapterIsWrittenForPeftAndLlamaCpp,
    )

    private companion object {
        /** As tests/support/text_cases.py has it. */
        const val STEPS = 250L
        const val DATA = 8L
        const val CPU = "executorch"
    }
}
