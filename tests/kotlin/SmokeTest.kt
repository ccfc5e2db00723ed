// The Kotlin host on a real bundle, compared with what Python's host wrote into the case folder.

import java.io.File
import java.util.concurrent.CountDownLatch
import kotlin.concurrent.thread
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import zoexport.session.Candidate
import zoexport.session.Dataset
import zoexport.session.Noise
import zoexport.session.SlotValues
import zoexport.session.TrainingSession
import zoexport.session.ZoException

class SmokeTest(private val case: File, output: File, private val golden: Any?) {
    private val expected = Json.parse(case.resolve("expected.json").readText())
    private val bundle = case.resolve("bundle")
    private val states = output.resolve(expected["states"].text())
    private val steps = expected["steps"].int()

    private fun open(): TrainingSession = TrainingSession.open(bundle, threads = expected["threads"].int())

    private fun examples(): Dataset = Dataset().apply { load(case.resolve("examples.jsonl")) }

    /** A session with the case's settings, with a state where one is named. */
    private fun prepared(state: String?): TrainingSession = open().apply {
        val settings = expected["settings"]
        val seed = settings["seed"].text().toULong()
        if (state != null) attach(states.resolve(state), seed)
        val numbers = mapOf("batch_size" to settings["batch_size"].int(), "seed" to seed)
        configure(settings.members().mapValues { (key, value) -> numbers[key] ?: checkNotNull(value) })
    }

    fun describesTheBundle() = open().use { session ->
        val info = session.info
        val known = expected["info"]
        assertEquals(known["bundle_id"], info.bundleId)
        assertEquals(
            listOf(known["method"], known["target"], known["engine"]),
            listOf<Any?>(info.method, info.target, info.engine),
        )
        assertEquals(
            known["numbers"].items().map { it.int() },
            listOf(info.rows, info.maxLength, info.copies, info.numQueries, info.maxLabels, steps),
        )
        assertEquals(0, info.steps)
        val defaults = expected["defaults"]
        assertEquals(defaults["learning_rate"], session.settings["learning_rate"])
        assertEquals(defaults["batch_size"].int(), session.settings["batch_size"])
        assertEquals(defaults["seed"].text().toULong(), session.settings["seed"])
        assertEquals(expected["slots"].items().size, session.slots.size)
        for ((slot, wanted) in session.slots.zip(expected["slots"].items())) {
            assertEquals(wanted["name"], slot.name)
            assertEquals(wanted["role"], slot.role)
            assertEquals(wanted["module"], slot.module)
            assertEquals((wanted["tensor_id"] as Double).toLong(), slot.tensorId.toLong())
            assertEquals(wanted["shape"].items().map { (it as Double).toLong() }, slot.shape.toList())
            assertEquals(slot.shape.reduce(Long::times), slot.elements)
        }
    }

    fun trainsAsPythonDoes() = examples().use { dataset ->
        prepared("whole").use { session ->
            assertEvaluation("before", session, dataset)
            val losses = mutableListOf<Double>()
            session.train(dataset, steps.toLong()) { progress ->
                losses.add(progress.loss)
                assertEquals(losses.size.toLong(), progress.step)
                assertEquals(steps.toLong(), progress.total)
                assertTrue(progress.rssBytes > progress.anonymousBytes && progress.seconds > 0)
                false
            }
            assertFinished(session)
            assertEquals(expected["records"].items().map { it["loss"] }, losses.map { bits(it.toFloat()) })
            assertEvaluation("after", session, dataset)
        }
    }

    fun cancelledAndReopenedItGoesOnAsTheSameRun() = examples().use { dataset ->
        prepared("resumed").use { session ->
            val error = assertFailsWith<ZoException.Cancelled> {
                session.train(dataset, steps.toLong()) { it.step == 3L }
            }
            assertEquals("step 3 of $steps", error.where)
            assertEquals("Train again with the same state to continue.", error.fix)
        }
        prepared("resumed").use { session ->
            assertEquals(3, session.info.steps)
            val seed = expected["settings"]["seed"].text().toULong()
            assertEquals(listOf<Any?>(seed, seed), listOf(session.info.seed, session.settings["seed"]))
            session.train(dataset, steps.toLong())
            session.save()
            assertFinished(session)
        }
    }

    fun heldOutExamplesAreEvaluated() = examples().use { dataset ->
        examples().use { heldOut ->
            prepared("held-out").use { session ->
                val seen = mutableListOf<Long>()
                session.train(dataset, 4, heldOut, evalEvery = 2, onEvaluation = { seen.add(it.step).not() })
                assertEquals(listOf(0L, 2L, 4L), seen)
                assertEquals(seen, session.evaluations.map { it.step })
                val best = session.evaluations.drop(1).minBy { it.loss }
                assertEquals(listOf(best.step), session.evaluations.filter { it.isBest }.map { it.step })
                val totals = mutableSetOf<Long>()
                val found = session.evaluate(heldOut) { _, total -> totals.add(total) && false }
                assertEquals(session.evaluations.last().loss, found.loss)
                assertEquals(setOf(heldOut.size), totals)
            }
        }
    }

    fun anotherThreadCancels() = examples().use { dataset ->
        val session = prepared(null)
        val error = assertFailsWith<ZoException.Cancelled> {
            session.train(dataset, 1000) {
                if (it.step == 2L) thread { session.cancel() }.join()
                false
            }
        }
        assertEquals("step 2 of 1000", error.where)
        session.close()
        session.cancel()
    }

    fun opensOnlyWhatATrustedKeySigned() {
        val (trusted, other) = listOf("trusted", "other").map { expected[it].text() }
        TrainingSession.open(bundle, trustedKeys = listOf(other, trusted)).use { session ->
            assertEquals(expected["info"]["bundle_id"], session.info.bundleId)
        }
        val refused = assertFailsWith<ZoException.Bundle> {
            TrainingSession.open(bundle, trustedKeys = listOf(other))
        }
        assertEquals(File(bundle, "manifest.json.minisig").path, refused.where)
        assertEquals("one by a trusted key", refused.expected)
        for (keys in listOf(emptyList(), listOf("nonsense"))) {
            assertFailsWith<ZoException.InvalidArgument> { TrainingSession.open(bundle, trustedKeys = keys) }
        }
    }

    fun stepsOnChosenExamples() = examples().use { dataset ->
        prepared(null).use { session ->
            val first = session.step(dataset, longArrayOf(4, 0, 4))
            val second = session.step(dataset, longArrayOf(2))
            assertEquals(listOf(0L, 1L), listOf(first.step, second.step))
            assertEquals(2 * session.info.numQueries, first.losses.size)
            assertEquals(first.losses.average(), first.loss, 1e-12)
            val record = session.record(0)
            assertEquals(bits(record.gradients), bits(first.gradients))
            assertEquals(bits(record.loss), bits(first.loss.toFloat()))
            assertFailsWith<ZoException.InvalidArgument> { session.step(dataset, longArrayOf()) }
                .let { assertEquals("indices: found none; expected at least one. Pass indices of examples.", it.message) }
            assertFailsWith<ZoException.InvalidArgument> { session.step(dataset, longArrayOf(7)) }
            assertFailsWith<ZoException.InvalidArgument> { session.step(dataset, longArrayOf(-1)) }
            assertEquals(2, session.info.steps)
        }
    }

    fun aCallbacksExceptionComesOutOfTrain() = examples().use { dataset ->
        prepared("thrown").use { session ->
            val thrown = assertFailsWith<IllegalStateException> {
                session.train(dataset, steps.toLong()) { error("the app's own") }
            }
            assertEquals("the app's own", thrown.message)
            assertEquals(1, session.info.steps)
        }
        open().use { session ->
            session.attach(states.resolve("thrown"), readOnly = true)
            assertEquals(1, session.info.steps)
            assertFailsWith<ZoException.State> { session.save() }
        }
    }

    fun examplesOfTheHostAreCheckedAndCounted() = Dataset().use { dataset ->
        val right = Candidate(longArrayOf(1, 2), longArrayOf(-100, 3))
        dataset.add(listOf(right))
        dataset.add(listOf(right, Candidate(longArrayOf(1), longArrayOf(2))), target = 1)
        assertFailsWith<ZoException.Data> { dataset.add(listOf(right), target = 1) }
        assertFailsWith<ZoException.Data> { dataset.add(listOf(right), target = -1) }
        assertFailsWith<ZoException.Data> { dataset.add(listOf()) }
        assertFailsWith<ZoException.Data> { dataset.add(listOf(Candidate(longArrayOf(1, 2), longArrayOf(1)))) }
        val bad = assertFailsWith<ZoException.Data> { dataset.load(case.resolve("bad.jsonl")) }
        val known = expected["bad"]
        assertEquals(
            listOf(known["where"], known["found"], known["expected"], known["fix"]),
            listOf<Any?>(bad.where, bad.found, bad.expected, bad.fix),
        )
        assertEquals(2, dataset.size)
    }

    fun examplesAddedOneByOneAreThoseOfAFile() = Dataset().use { dataset ->
        for (line in case.resolve("examples.jsonl").readLines().map(Json::parse)) {
            val candidates = line["candidates"].items().map { Candidate(longs(it["tokens"]), longs(it["labels"])) }
            dataset.add(candidates, line["target"].int())
        }
        prepared(null).use { assertEvaluation("before", it, dataset) }
    }

    fun aRunKeepsItsSettingsAndItsLog() = examples().use { dataset ->
        val state = states.resolve("kept")
        fun attached(rate: Double?, recover: Boolean = false, changeSettings: Boolean = false) = open().apply {
            attach(state, recover = recover, changeSettings = changeSettings)
            if (rate != null) configure(mapOf("learning_rate" to rate, "lr_scheduler_type" to "constant"))
        }
        attached(0.25).use { it.train(dataset, 3) }
        attached(null).use { assertEquals(0.25, it.settings["learning_rate"]) }
        attached(0.5).use { session ->
            val refused = assertFailsWith<ZoException.State> { session.train(dataset, 4) }
            assertContains(refused.found, "learning_rate 0.25")
            assertContains(refused.expected, "learning_rate 0.5")
        }
        attached(0.5, changeSettings = true).use { it.train(dataset, 4) }
        val log = state.resolve("trajectory.log")
        log.writeBytes(log.readBytes().also { it[70] = (it[70].toInt() xor 1).toByte() })
        assertContains(assertFailsWith<ZoException.State> { attached(null).close() }.found, "damage after 0 good records")
        assertTrue(state.resolve("trajectory.log.damaged-1").isFile)
        attached(null, recover = true).use { assertEquals(0, it.info.steps) }
    }

    fun failuresAreTypedAndSayWhere() = examples().use { dataset ->
        val nowhere = File("no/such/bundle")
        assertContains(assertFailsWith<ZoException.Bundle> { TrainingSession.open(nowhere) }.where, nowhere.path)
        assertFailsWith<ZoException.InvalidArgument> { TrainingSession.open(File("a\u0000b")) }
        assertFailsWith<ZoException.InvalidArgument> { TrainingSession.open(bundle, threads = -1) }
        prepared("held").use { session ->
            // The path has characters that JNI's own encoding would change.
            val locked = assertFailsWith<ZoException.State> { open().use { it.attach(states.resolve("held")) } }
            assertContains(locked.where, states.name)
            assertFailsWith<ZoException.State> { session.configure(mapOf("seed" to 1u)) }
            val rate = assertFailsWith<ZoException.InvalidArgument> { session.configure(mapOf("learning_rate" to 0.0)) }
            assertEquals("setting 'learning_rate'", rate.where)
            assertFailsWith<ZoException.InvalidArgument> { session.configure(mapOf("batch_size" to -1)) }
            assertEquals("slot nothing", assertFailsWith<ZoException.InvalidArgument> { session.readSlot("nothing") }.where)
            assertFailsWith<ZoException.InvalidArgument> { session.readSlot("${session.slots[0].name}\u0000") }
            assertFailsWith<ZoException.InvalidArgument> { session.record(0) }
            session.configure(mapOf("learning_rate" to 1e6, "lr_scheduler_type" to "constant"))
            val diverged = assertFailsWith<ZoException.Diverged> { session.train(dataset, 200) }
            assertContains(diverged.fix, "Lower learning_rate")
        }
        val altered = states.resolve("altered")
        bundle.copyRecursively(altered)
        val program = altered.listFiles()!!.single { it.name.endsWith(".pte") }
        program.writeBytes(program.readBytes().also { it[it.size - 1] = (it[it.size - 1].toInt() xor 1).toByte() })
        TrainingSession.open(altered).use { session ->
            val error = assertFailsWith<ZoException.Bundle> { session.evaluate(dataset) }
            assertContains(error.found, "altered content")
        }
        program.writeBytes(ByteArray(program.length().toInt()) { 7 })
        TrainingSession.open(altered, verify = false).use { session ->
            assertFailsWith<ZoException.Engine> { session.evaluate(dataset) }
        }
        altered.deleteRecursively()
    }

    fun noCallAfterCloseOrFromWithinACall() {
        val dataset = examples()
        val session = prepared(null)
        for (forbidden in listOf<() -> Any>({ session.info }, { session.close() }, { dataset.size })) {
            val nested = assertFailsWith<ZoException.InvalidArgument> {
                session.train(dataset, 100) { forbidden(); false }
            }
            assertEquals("a call from within a call", nested.found)
        }
        session.close()
        session.close()
        assertEquals("a call after close", assertFailsWith<ZoException.InvalidArgument> { session.info }.found)
        dataset.close()
        dataset.close()
        assertFailsWith<ZoException.InvalidArgument> { dataset.size }
        open().use { other -> assertFailsWith<ZoException.InvalidArgument> { other.evaluate(dataset) } }
    }

    fun closeWaitsForTheCallThatRuns() = examples().use { dataset ->
        val session = prepared(null)
        val began = CountDownLatch(1)
        var taken = 0L
        val training = thread {
            session.train(dataset, 50) { progress ->
                taken = progress.step
                began.countDown()
                false
            }
        }
        began.await()
        session.close()
        assertEquals(50, taken)
        training.join()
    }

    fun theNoiseIsTheSpecification() {
        assertEquals("zoexport-philox4x32-10/1", golden["spec"])
        for (known in golden["known_answers"].items()) {
            val (block, tensor, query, step) = known["counter"].strings().map { it.toUInt(16).toInt() }
            val (low, high) = known["key"].strings().map { it.toULong(16) }
            val words = Noise.words((low or (high shl 32)).toLong(), block, tensor, query, step)
            assertEquals(known["result"].strings(), words.map { it.toString(16).padStart(8, '0') })
        }
        for (stream in golden["streams"].items()) {
            val seed = stream["seed"].text().toULong(16).toLong()
            val (tensor, query, step) = listOf("tensor_id", "query", "step").map { (stream[it] as Double).toUInt().toInt() }
            val start = (stream["start"] as Double).toLong()
            val wanted = stream["words"].strings()
            val words = wanted.indices.map { i ->
                val element = start + i
                Noise.words(seed, (element / 4).toInt(), tensor, query, step)[(element % 4).toInt()]
            }
            assertEquals(wanted, words.map { it.toString(16).padStart(8, '0') })
            assertEquals(stream["normals"].strings(), bits(Noise.normals(seed, tensor, query, step, start, wanted.size)))
            val signs = stream["signs"].items().map { (it as Double).toFloat() }
            assertEquals(signs, Noise.signs(seed, tensor, query, step, start, wanted.size).toList())
        }
        for (order in golden["permutations"].items()) {
            val epoch = (order["epoch"] as Double).toUInt().toInt()
            assertEquals(
                order["order"].items().map { it.int() },
                Noise.permutation(order["seed"].text().toULong(16).toLong(), epoch, order["n"].int()),
            )
        }
        assertTrue(golden["streams"].items().size >= 10 && golden["permutations"].items().size >= 5)
    }

    /** The run is over, and everything in it is what Python's run has, bit for bit. */
    private fun assertFinished(session: TrainingSession) {
        assertEquals(steps.toLong(), session.info.steps)
        for (slot in expected["slots"].items()) {
            assertEquals(slot["finished"], bits(session.readSlot(slot["name"].text())))
            assertEquals(slot["current"], bits(session.readSlot(slot["name"].text(), SlotValues.CURRENT)))
        }
        for ((index, wanted) in expected["records"].items().withIndex()) {
            val record = session.record(index.toLong())
            assertEquals(index.toLong(), record.step)
            assertEquals(wanted["loss"], bits(record.loss))
            assertEquals(wanted["learning_rate"], bits(record.learningRate))
            assertEquals(wanted["gradients"], bits(record.gradients))
        }
    }

    private fun assertEvaluation(key: String, session: TrainingSession, dataset: Dataset) {
        val found = session.evaluate(dataset)
        assertEquals(
            expected[key].items(),
            listOf(found.loss, found.accuracy, found.tokenAccuracy, found.examples.toDouble()),
        )
    }

    private fun longs(numbers: Any?): LongArray = numbers.items().map { (it as Double).toLong() }.toLongArray()

    fun tests() = mapOf(
        "describes the bundle" to ::describesTheBundle,
        "trains as Python does" to ::trainsAsPythonDoes,
        "cancelled and reopened, it goes on as the same run" to ::cancelledAndReopenedItGoesOnAsTheSameRun,
        "held-out examples are evaluated" to ::heldOutExamplesAreEvaluated,
        "another thread cancels" to ::anotherThreadCancels,
        "opens only what a trusted key signed" to ::opensOnlyWhatATrustedKeySigned,
        "steps on chosen examples" to ::stepsOnChosenExamples,
        "a callback's exception comes out of train" to ::aCallbacksExceptionComesOutOfTrain,
        "examples of the host are checked and counted" to ::examplesOfTheHostAreCheckedAndCounted,
        "examples added one by one are those of a file" to ::examplesAddedOneByOneAreThoseOfAFile,
        "a run keeps its settings and its log" to ::aRunKeepsItsSettingsAndItsLog,
        "failures are typed and say where" to ::failuresAreTypedAndSayWhere,
        "no call after close, or from within a call" to ::noCallAfterCloseOrFromWithinACall,
        "close waits for the call that runs" to ::closeWaitsForTheCallThatRuns,
        "the noise is the specification" to ::theNoiseIsTheSpecification,
    )
}
