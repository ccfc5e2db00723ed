import java.io.File
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import zoexport.app.training.BundleFacts
import zoexport.app.training.LossHistory
import zoexport.app.training.Request
import zoexport.app.training.RequestStore
import zoexport.session.Dataset
import zoexport.session.Loss
import zoexport.session.ZoException

/** Data files, as `zoexport train` takes them. */
class RecordTest(private val bundle: File, private val texts: File, private val output: File) {
    fun examplesAreThoseOfPython() {
        for (name in listOf("data", "mixed")) Dataset().use { expected ->
            expected.load(texts.resolve("$name.examples.jsonl"))
            Dataset().use { found ->
                val loss = if (name == "data") Loss.CHOICES else Loss.FULL
                val shortened = found.read(texts.resolve("$name.jsonl"), bundle, loss)
                assertEquals(texts.resolve("$name.shortened").readText().toLong(), shortened)
                assertEquals(expected.size, found.size)
                assertEquals(expected.digest, found.digest)
            }
        }
    }

    fun whatCannotBeUsedIsRefusedWithItsLine() = Dataset().use { dataset ->
        val good = """{"text": "a warm film"}"""
        fun refused(file: File, loss: Loss = Loss.FULL) = assertFailsWith<ZoException.Data>(file.readText()) {
            dataset.read(file, bundle, loss)
        }
        for ((line, found) in mapOf(
            """{"text": 3}""" to "'text' that is number",
            """["a"]""" to "a JSON list",
            """$good $good""" to "not JSON",
            """{"prompt": "a"}""" to "no 'completion'",
            """{"prompt": "a", "completion": "b", "choices": ["c", "d"]}""" to "not among the choices",
        )) {
            val error = refused(data("$good\n\n$line\n"))
            assertContains(error.where, "data.jsonl:3")
            assertContains(error.found, found)
        }
        assertEquals("no examples", refused(data("\n \n")).found)
        assertEquals("no 'choices'", refused(data(good), Loss.CHOICES).found)
        assertFailsWith<ZoException.Data> { dataset.read(output.resolve("nothing.jsonl"), bundle) }
        assertFailsWith<ZoException.Bundle> { dataset.read(data(good), output.resolve("no bundle")) }
        assertFailsWith<ZoException.InvalidArgument> { dataset.read(data(good), bundle, trustedKeys = listOf("no key")) }
        assertEquals(0, dataset.size)
    }

    fun bundlesWithoutWhatTheAppNeedsAreRefused() {
        val copy = output.resolve("bundle")
        bundle.copyRecursively(copy)
        copy.resolve(BundleFacts.TOKENIZER).delete()
        assertEquals("no tokenizer.json", assertFailsWith<ZoException.Bundle> { BundleFacts.read(copy) }.found)
        for (content in listOf("", "[]", "{", """{"model": {}}""")) {
            copy.resolve("manifest.json").writeText(content)
            assertFailsWith<ZoException.Bundle>(content) { BundleFacts.read(copy) }
        }
        assertFailsWith<ZoException.Bundle> { BundleFacts.read(output.resolve("nothing")) }
    }

    fun requestsOutliveTheProcess() {
        val store = RequestStore(output.resolve("kept/request.json"))
        assertEquals(null, store.load())
        val request = Request(File("/a b/bundle"), File("/ü/data.jsonl"), File("state"), 1L shl 40)
        store.save(request.copy(steps = 1))
        store.save(request)
        assertEquals(request, RequestStore(output.resolve("kept/request.json")).load())
        for (damaged in listOf("", "{", "{}", "[]")) {
            output.resolve("kept/request.json").writeText(damaged)
            assertEquals(null, store.load(), damaged)
        }
        store.clear()
        assertEquals(listOf(), output.resolve("kept").list()!!.toList())
    }

    fun chartsHaveFewPoints() {
        val history = LossHistory(most = 4)
        for (step in 1L..9L) history.add(step, step.toDouble())
        // Merged at the fourth point, and again at the eighth step.
        assertEquals(listOf(4L to 2.5, 8L to 6.5), history.snapshot().map { it.step to it.loss })
        for (step in 10L..1000L) history.add(step, 0.0)
        assertEquals(true, history.snapshot().size in 2..3)
        history.clear()
        history.add(1, 5.0)
        assertEquals(listOf(1L to 5.0), history.snapshot().map { it.step to it.loss })
    }

    private fun data(content: String): File = output.apply { mkdirs() }.resolve("data.jsonl").apply { writeText(content) }

    fun tests() = mapOf(
        "data: examples are those of Python" to ::examplesAreThoseOfPython,
        "data: what cannot be used is refused with its line" to ::whatCannotBeUsedIsRefusedWithItsLine,
        "bundles without what the app needs are refused" to ::bundlesWithoutWhatTheAppNeedsAreRefused,
        "requests outlive the process" to ::requestsOutliveTheProcess,
        "charts have few points" to ::chartsHaveFewPoints,
    )
}
