import java.io.File
import kotlin.math.sqrt
import kotlin.test.assertEquals
import kotlin.test.assertTrue
import zoexport.session.Dataset
import zoexport.session.SlotValues
import zoexport.session.TrainingSession

/** The golden trajectories: [case] is what tests/support/trajectories.py made, [golden] is trajectories.json. */
class TrajectoryTest(private val case: File, private val golden: Any?) {
    private val lossBound = golden["tolerances"]["loss"] as Double
    private val stateBound = golden["tolerances"]["state"] as Double
    private val runs = golden["trajectories"].items()

    private fun bundle(run: Any?): File = case.resolve(run["method"].text()).resolve("bundle")

    private fun examples() = Dataset().apply { load(case.resolve("examples.jsonl")) }

    private fun words(text: Any?): List<String> = text.text().split(' ')

    private fun floats(text: Any?): List<Float> = words(text).map { Float.fromBits(it.toUInt(16).toInt()) }

    fun stepsAreTheReferences() = examples().use { dataset ->
        assertEquals(listOf("prge", "mebp"), runs.map { it["method"] })
        for (run in runs) TrainingSession.open(bundle(run)).use { session ->
            assertEquals(run["seed"].text().toULong(16), session.info.seed)
            session.configure(mapOf("total_steps" to run["steps"].int()))
            for ((number, batch) in run["batches"].items().withIndex()) {
                val step = session.step(dataset, batch.items().map { it.int().toLong() }.toLongArray())
                val losses = run["losses"].items()[number].items().map { it as Double }
                assertEquals(losses.size, step.losses.size)
                for ((wanted, found) in losses.zip(step.losses.toList())) assertEquals(wanted, found, lossBound * wanted)
                val record = session.record(number.toLong())
                assertEquals(run["rates"].items()[number], bits(record.learningRate))
                val slopes = record.gradients.indices.map { i ->
                    (step.losses[2 * i] - step.losses[2 * i + 1]) / (2 * record.eps.toDouble())
                }
                assertEquals(slopes.map { bits(it.toFloat()) }, bits(record.gradients))
            }
            for ((name, text) in run["slots"].members()) {
                val expected = floats(text)
                val found = session.readSlot(name)
                assertEquals(expected.size, found.size)
                val difference = expected.indices.sumOf { squared(found[it] - expected[it]) }
                assertTrue(sqrt(difference / expected.sumOf(::squared)) <= stateBound, name)
            }
        }
    }

    fun theLoopTakesTheSameSteps() = examples().use { dataset ->
        for (run in runs) TrainingSession.open(bundle(run)).use { looped ->
            val steps = run["steps"].int().toLong()
            looped.train(dataset, steps)
            TrainingSession.open(bundle(run)).use { stepped ->
                stepped.configure(mapOf("total_steps" to steps))
                for ((number, batch) in run["batches"].items().withIndex()) {
                    stepped.step(dataset, batch.items().map { it.int().toLong() }.toLongArray())
                    val (one, other) = listOf(looped, stepped).map { it.record(number.toLong()) }
                    assertEquals(bits(one.loss), bits(other.loss))
                    assertEquals(bits(one.gradients), bits(other.gradients))
                }
            }
        }
    }

    fun theGoldenLogGivesTheGoldenBits() {
        val run = runs.single { it["gradients"].items().isNotEmpty() }
        TrainingSession.open(bundle(run)).use { session ->
            session.attach(case.resolve("prge/logged"), readOnly = true)
            assertEquals(run["steps"].int().toLong(), session.info.steps)
            for ((name, text) in run["slots"].members()) {
                assertEquals(words(text), bits(session.readSlot(name)))
                assertEquals(words(text), bits(session.replaySlot(name, session.info.steps)))
                assertTrue(words(text) != bits(session.readSlot(name, SlotValues.CURRENT)))
            }
        }
    }

    private fun squared(value: Float): Double = value.toDouble() * value

    fun tests() = mapOf(
        "golden: steps are the references'" to ::stepsAreTheReferences,
        "golden: the loop takes the same steps" to ::theLoopTakesTheSameSteps,
        "golden: the log gives the bits" to ::theGoldenLogGivesTheGoldenBits,
    )
}
