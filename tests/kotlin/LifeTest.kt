import java.io.File
import kotlin.concurrent.thread
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotEquals
import kotlin.test.assertNotNull
import kotlin.test.assertTrue
import zoexport.app.training.Launcher
import zoexport.app.training.TrainingModel
import zoexport.session.AdapterFormat
import zoexport.session.Answer
import zoexport.session.Conditions
import zoexport.session.Evaluation
import zoexport.session.GenerateOptions
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

    private fun newModel(keys: List<String>, atTenthLook: () -> Unit = { model.pause() }): TrainingModel {
        val folder = output.resolve("app").apply { mkdirs() }
        val conditions = {
            if (++looks == 10) atTenthLook()
            Conditions()
        }
        return TrainingModel(folder, "", conditions, launcher, trustedKeys = keys).also { model = it }
    }

    /** The first process, which is killed in the middle of its run. */
    fun importTrainAndBeKilled() {
        val expected = Json.parse(case.resolve("expected.json").readText())
        newModel(case.resolve("life.pub").readLines()) {
            ProcessBuilder("kill", "-9", ProcessHandle.current().pid().toString()).start().waitFor()
        }
        assertFailsWith<ZoException.Bundle> { model.importBundle(case.resolve("plain.zobundle"), "life.zobundle") }
        model.importBundle(case.resolve("life.zobundle"), "life.zobundle")
        model.choose(
            data = case.resolve("life.jsonl"), steps = (expected["steps"] as Double).toLong(),
            heldOut = case.resolve("held-out.jsonl"),
        )
        model.start()
        work!!.join()
    }

    fun resumePauseResumeAskAndShare() {
        val expected = Json.parse(case.resolve("expected.json").readText())
        val keys = case.resolve("life.pub").readLines()
        newModel(keys)
        assertEquals(Phase.PAUSED, model.screen.view.phase, model.screen.problem)
        assertTrue(model.screen.view.step in 1 until model.screen.view.steps)
        model.resume()
        work!!.join()
        assertEquals(Phase.PAUSED, model.screen.view.phase, model.screen.problem)
        // Another process again.
        newModel(keys).resume()
        work!!.join()
        val view = model.screen.view
        assertEquals(Phase.DONE, view.phase, model.screen.problem)
        same(expected["before"], view.before)
        same(expected["after"], view.after)
        assertEquals((expected["best"] as Double).toLong(), view.bestStep)
        assertEquals(view.bestStep, view.evaluations.single { it.isBest }.step)
        assertEquals(case.resolve("held-out.jsonl"), model.screen.heldOut)
        val prompt = expected["prompt"] as String
        val tokens = expected["tokens"].int()
        for (which in listOf("trained", "untrained")) {
            val options = GenerateOptions(tokens, untrained = which == "untrained")
            assertTrue(model.withSession { it.generate(prompt, options) }.text.startsWith(expected[which].text()), which)
        }
        val questions = expected["questions"].strings()
        repeat(2) { // anew, the same
            val said = mapOf(true to StringBuilder(), false to StringBuilder())
            for (question in questions) {
                model.ask(question, tokens) { trained, piece ->
                    said.getValue(trained).append(piece)
                    false
                }
            }
            assertEquals(questions, model.talk.map { it.question })
            for ((which, answers) in mapOf("trained" to model.talk.map { it.trained }, "untrained" to model.talk.map { it.untrained })) {
                assertEquals(expected["answers"][which].strings(), answers)
                assertEquals(answers.joinToString(""), said.getValue(which == "trained").toString())
            }
            model.hush()
        }
        assertNotEquals(expected["answers"]["trained"].strings(), expected["answers"]["untrained"].strings())
        model.withSession {
            it.exportAdapter(output.resolve("peft"))
            it.exportAdapter(output.resolve("adapter.gguf"), AdapterFormat.GGUF)
        }
        output.resolve("app/states").listFiles()!!.single().copyRecursively(output.resolve("state"))
    }

    /** Without a chat template every question is a prompt of its own. */
    fun aModelWithoutATemplateIsPrompted() {
        val expected = Json.parse(case.resolve("expected.json").readText())
        newModel(case.resolve("life.pub").readLines())
        model.importBundle(case.resolve("prompts.zobundle"), "prompts.zobundle")
        model.choose(data = case.resolve("life.jsonl"), steps = 1, heldOut = null)
        model.start(Answer.RESTART)
        work!!.join()
        repeat(2) {
            val answer = model.ask(expected["prompt"].text(), expected["tokens"].int()).untrained
            assertTrue(answer.startsWith(expected["untrained"].text()))
        }
        assertEquals(2, model.talk.size)
        // Nor can it learn conversations, which another can.
        model.typeTurn("How was it?", "Warm.")
        model.typeChat()
        model.start(Answer.RESTART)
        assertContains(assertNotNull(model.screen.problem), "typed.jsonl:1, chat: found a model whose tokenizer has no chat template")
        model.choose(bundle = model.bundles.first { it.name == "life" })
        model.start(Answer.RESTART)
        work!!.join()
        assertEquals(listOf<Any>(1L, Phase.DONE), model.screen.view.let { listOf(it.examples, it.phase) })
    }

    private fun same(expected: Any?, found: Evaluation?) {
        val wanted = expected as Map<*, *>
        assertEquals(wanted["loss"], assertNotNull(found).loss)
        assertEquals(wanted["accuracy"], found.accuracy)
    }

    fun tests() = mapOf(
        "life: killed, resume, pause, resume, ask, share" to ::resumePauseResumeAskAndShare,
        "life: a model without a template is prompted" to ::aModelWithoutATemplateIsPrompted,
    )
}
