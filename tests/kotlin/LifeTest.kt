import java.io.File
import kotlin.concurrent.thread
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertTrue
import zoexport.app.training.Launcher
import zoexport.app.training.TrainingModel
import zoexport.session.AdapterFormat
import zoexport.session.Conditions
import zoexport.session.Evaluation
import zoexport.session.Phase
import zoexport.session.ZoException

/** The whole life of a fine-tuning, as an app that ships a key has it (tests/support/life_cases.py). */
class LifeTest(private val case: File, private val output: File) {
    private var work: Thread? = null
    private var looks = 0
    private lateinit var model: TrainingModel

    private val launcher = object : Launcher {
        override fun launch(whenCharging: Boolean) {
            work = thread { model.train() }
        }

        override fun stop() = Unit
    }

    private fun newModel(keys: List<String>): TrainingModel {
        val folder = output.resolve("app").apply { mkdirs() }
        val conditions = {
            if (++looks == 10) model.pause()
            Conditions()
        }
        return TrainingModel(folder, "", conditions, launcher, trustedKeys = keys).also { model = it }
    }

    fun importTrainPauseResumeAskAndShare() {
        val expected = Json.parse(case.resolve("expected.json").readText())
        val packed = case.resolve("life.zobundle")
        val keys = case.resolve("life.pub").readLines()
        newModel(keys)
        assertFailsWith<ZoException.Bundle> { model.importBundle(case.resolve("plain.zobundle"), "life.zobundle") }
        model.importBundle(packed, "life.zobundle")
        model.choose(data = case.resolve("life.jsonl"), steps = (expected["steps"] as Double).toLong())
        model.start()
        work!!.join()
        assertEquals(Phase.PAUSED, model.screen.view.phase, model.screen.problem)
        // Another process.
        newModel(keys).resume()
        work!!.join()
        val view = model.screen.view
        assertEquals(Phase.DONE, view.phase, model.screen.problem)
        same(expected["before"], view.before)
        same(expected["after"], view.after)
        val prompt = expected["prompt"] as String
        for (which in listOf("trained", "untrained")) {
            val answer = model.ask(prompt, which == "trained")
            assertTrue(answer.startsWith(expected[which] as String), which)
        }
        assertTrue(model.ask(prompt, trained = true) != model.ask(prompt, trained = false))
        model.withSession {
            it.exportAdapter(output.resolve("peft"))
            it.exportAdapter(output.resolve("adapter.gguf"), AdapterFormat.GGUF)
        }
        output.resolve("app/states").listFiles()!!.single().copyRecursively(output.resolve("state"))
    }

    private fun same(expected: Any?, found: Evaluation?) {
        val wanted = expected as Map<*, *>
        assertEquals(wanted["loss"], assertNotNull(found).loss)
        assertEquals(wanted["accuracy"], found.accuracy)
    }

    fun tests() = mapOf("life: import, train, pause, resume, ask, share" to ::importTrainPauseResumeAskAndShare)
}
