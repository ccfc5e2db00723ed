import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.test.assertContains
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import zoexport.session.Dataset
import zoexport.session.Dtype
import zoexport.session.SlotValues
import zoexport.session.TrainingSession
import zoexport.session.ZoException

/** The verbs that pass slots' values and bytes. */
class SlotTest(private val case: File, golden: Any?) {
    private val name = golden["trajectories"].items()[0]["slots"].members().keys.first()

    private fun open(method: String) = TrainingSession.open(case.resolve(method).resolve("bundle"))

    private fun examples() = Dataset().apply { load(case.resolve("examples.jsonl")) }

    private fun floats(bytes: ByteArray): FloatArray =
        FloatArray(bytes.size / 4).also { ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(it) }

    fun bytesAreTheValues() = examples().use { dataset ->
        open("prge").use { session ->
            repeat(2) { session.step(dataset, longArrayOf(0, 1)) }
            assertEquals(Dtype.FLOAT32, session.slot(name).dtype)
            for (which in listOf(SlotValues.CURRENT, SlotValues.FINISHED)) {
                assertContentEquals(session.readSlot(name, which), floats(session.readSlotBytes(name, which)))
            }
            for (updates in 0L..2L) {
                assertContentEquals(session.replaySlot(name, updates), floats(session.replaySlotBytes(name, updates)))
            }
            assertContentEquals(session.readSlot(name), session.replaySlot(name, 2))
            assertContentEquals(session.readSlot(name, SlotValues.CURRENT), session.replaySlot(name, 1))
            assertFailsWith<ZoException.InvalidArgument> { session.replaySlot(name, 3) }
            assertFailsWith<ZoException.InvalidArgument> { session.replaySlot(name, -1) }
            assertFailsWith<ZoException.InvalidArgument> { session.writeSlot(name, session.readSlot(name)) }
        }
    }

    fun writtenValuesAreWhereTheRunBegins() {
        open("prge").use { session ->
            val values = FloatArray(session.slot(name).elements.toInt()) { it / 8f }
            session.writeSlot(name, values)
            assertContentEquals(values, session.readSlot(name))
            val bytes = session.readSlotBytes(name).also { it.reverse() }
            session.writeSlotBytes(name, bytes)
            assertContentEquals(bytes, session.readSlotBytes(name))
            for (wrong in listOf(0, values.size + 1)) {
                assertFailsWith<ZoException.InvalidArgument> { session.writeSlot(name, FloatArray(wrong)) }
                assertFailsWith<ZoException.InvalidArgument> { session.writeSlotBytes(name, ByteArray(wrong)) }
            }
            assertContentEquals(bytes, session.readSlotBytes(name))
            assertEquals("slot nothing", assertFailsWith<ZoException.InvalidArgument> { session.slot("nothing") }.where)
        }
    }

    /** The first step goes against the gradient, element by element. */
    fun gradientsOfAFirstOrderMethod() = examples().use { dataset ->
        open("mebp").use { session ->
            val (before, rate) = session.readSlot(name) to (session.settings["learning_rate"] as Double).toFloat()
            assertFailsWith<ZoException.InvalidArgument> { session.readSlot(name, SlotValues.GRADIENT) }
            val decay = (session.settings["weight_decay"] as Double).toFloat()
            val step = session.step(dataset, longArrayOf(2))
            assertEquals(listOf(1, 0), listOf(step.losses.size, step.gradients.size))
            val gradient = session.readSlot(name, SlotValues.GRADIENT)
            assertEquals(before.size, gradient.size)
            // AdamW's first step moves every element by the rate, against the gradient's sign, where there is one.
            val moved = session.readSlot(name).indices.count { i ->
                val change = session.readSlot(name)[i] - before[i] * (1 - rate * decay)
                gradient[i] != 0f && (change > 0) == (gradient[i] < 0)
            }
            assertEquals(before.size, moved)
            assertFailsWith<ZoException.InvalidArgument> { session.replaySlot(name, 1) }
        }
    }

    fun settingsOfAFirstOrderMethodAreKept() = open("mebp").use { session ->
        val changes = mapOf("momentum" to 0.5, "weight_decay" to 0.25, "max_grad_norm" to 2.0, "checkpoint_every" to 2)
        val expected = session.settings + changes
        session.configure(changes)
        assertEquals(expected, session.settings)
        val norms = listOf("max_grad_norm" to -1.0, "max_grad_norm" to Double.NaN)
        for (wrong in norms + listOf("checkpoint_every" to -1, "momentum" to "much", "none" to 1)) {
            val refused = assertFailsWith<ZoException.InvalidArgument> { session.configure(mapOf(wrong)) }
            assertContains(refused.where, wrong.first)
        }
        assertEquals(expected, session.settings)
    }

    fun differencesReachTheSession() = open("prge").use { session ->
        assertEquals("central", session.settings["difference"])
        // Which refuses them where a call scores all copies at once.
        assertFailsWith<ZoException.InvalidArgument> {
            session.configure(mapOf("difference" to "forward"))
        }
    }

    fun tests() = mapOf(
        "slots: bytes are the values" to ::bytesAreTheValues,
        "slots: written values are where the run begins" to ::writtenValuesAreWhereTheRunBegins,
        "slots: gradients of a first-order method" to ::gradientsOfAFirstOrderMethod,
        "settings of a first-order method are kept" to ::settingsOfAFirstOrderMethodAreKept,
        "settings of a zeroth-order method reach the session" to ::differencesReachTheSession,
    )
}
