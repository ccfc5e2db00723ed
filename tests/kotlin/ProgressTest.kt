import java.io.File
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.onEach
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import zoexport.session.Dataset
import zoexport.session.TrainingSession
import zoexport.session.ZoException

/** Training as a flow. */
class ProgressTest(private val case: File, private val output: File) {
    private fun open(method: String) = TrainingSession.open(case.resolve(method).resolve("bundle"))

    private fun examples() = Dataset().apply { load(case.resolve("examples.jsonl")) }

    fun everyStepComes() = examples().use { dataset ->
        for (method in listOf("prge", "mebp")) open(method).use { session ->
            val steps = runBlocking { session.progress(dataset, 12).onEach { delay(2) }.toList() }
            assertEquals((1L..12L).toList(), steps.map { it.step })
            assertEquals((0L..11L).map { bits(session.record(it).loss) }, steps.map { bits(it.loss.toFloat()) })
        }
    }

    /** The step that runs is the last one, it is saved when the collector has ended, and the session is free again. */
    fun cancellingTheCollectorEndsTheRunWithinAStep() = examples().use { dataset ->
        open("mebp").use { session ->
            session.attach(output.resolve("cancelled"))
            val began = CompletableDeferred<Unit>()
            runBlocking {
                val collecting = launch { session.progress(dataset, 1_000_000).collect { began.complete(Unit) } }
                began.await()
                collecting.cancel()
                val logged = stepsLogged("cancelled")
                collecting.join()
                assertTrue(session.info.steps <= logged + 1, "${session.info.steps} after $logged")
            }
            val reached = session.info.steps
            assertTrue(output.resolve("cancelled/snapshot-$reached.safetensors").isFile)
            session.train(dataset, reached + 1)
            assertEquals(reached + 1, session.info.steps)
        }
    }

    /** A collector that wants no more ends the run at once, where no step runs ahead of it. */
    fun takingSomeStepsEndsTheRun() = examples().use { dataset ->
        open("prge").use { session ->
            val taken = runBlocking { session.progress(dataset, 1_000_000).take(3).toList() }
            assertEquals(listOf(1L, 2L, 3L), taken.map { it.step })
            assertTrue(session.info.steps < 1000, "${session.info.steps}")
        }
    }

    fun failuresComeOutOfCollect() = examples().use { dataset ->
        open("prge").use { session ->
            session.configure(mapOf("learning_rate" to 1e6))
            assertFailsWith<ZoException.Diverged> { runBlocking { session.progress(dataset, 200).collect() } }
            val cancelled = assertFailsWith<ZoException.Cancelled> {
                session.configure(mapOf("learning_rate" to 1e-3))
                runBlocking { session.progress(dataset, 1_000_000).collect { session.cancel() } }
            }
            assertTrue(cancelled.where.startsWith("step "))
        }
    }

    private fun stepsLogged(state: String): Long = (output.resolve(state).resolve("trajectory.log").length() - 64) / 20

    fun tests() = mapOf(
        "flow: every step comes" to ::everyStepComes,
        "flow: cancelling the collector ends the run within a step" to ::cancellingTheCollectorEndsTheRunWithinAStep,
        "flow: taking some steps ends the run" to ::takingSomeStepsEndsTheRun,
        "flow: failures come out of collect" to ::failuresComeOutOfCollect,
    )
}
