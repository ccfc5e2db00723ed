import java.io.File
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import zoexport.app.training.BundleFacts
import zoexport.app.training.LossHistory
import zoexport.app.training.Record
import zoexport.app.training.Request
import zoexport.app.training.RequestStore
import zoexport.app.training.Tokenizer
import zoexport.app.training.add
import zoexport.app.training.readRecords
import zoexport.session.Dataset
import zoexport.session.TrainingSession
import zoexport.session.ZoException

/** What Python's tokenizer made of every text of the case; no library of tokenizers runs here. */
class KnownTokens(texts: File) : Tokenizer {
    private val known = Json.parse(texts.resolve("tokens.json").readText()).items().associate { entry ->
        (entry["text"].text() to entry["special"] as Boolean) to
            entry["ids"].items().map { it.int().toLong() }.toLongArray()
    }

    override fun encode(text: String, special: Boolean): LongArray = known.getValue(text to special)

    override fun close() = Unit
}

/** Data files, as `zoexport train` takes them. */
class RecordTest(private val bundle: File, private val texts: File, private val output: File) {
    private val facts = BundleFacts.read(bundle)

    /** A dataset has no way to be read: the same losses to the last bit need the same tokens, labels and order. */
    fun examplesAreThoseOfPython() {
        for (name in listOf("data", "mixed")) Dataset().use { expected ->
            expected.load(texts.resolve("$name.examples.jsonl"))
            Dataset().use { found ->
                val records = readRecords(texts.resolve("$name.jsonl"))
                val shortened = KnownTokens(texts).use { found.add(records, it, facts, choices = name == "data") }
                assertEquals(texts.resolve("$name.shortened").readText().toInt(), shortened)
                assertEquals(expected.size, found.size)
                TrainingSession.open(bundle).use { session ->
                    session.configure(session.run.copy(loss = zoexport.session.Loss.FULL))
                    for (index in 0 until found.size) {
                        val (one, other) = listOf(expected, found).map { dataset ->
                            TrainingSession.open(bundle).use { it.apply { configure(session.run) }.step(dataset, longArrayOf(index)) }
                        }
                        assertEquals(one.losses.toList(), other.losses.toList(), "$name, example $index")
                    }
                    val (one, other) = listOf(expected, found).map { session.evaluate(it) }
                    assertEquals(listOf(one.loss, one.accuracy, one.tokenAccuracy), listOf(other.loss, other.accuracy, other.tokenAccuracy))
                }
            }
        }
    }

    fun whatCannotBeUsedIsRefusedWithItsLine() {
        val good = """{"text": "a"}"""
        for ((line, found) in mapOf(
            """{"text": 3}""" to "'text' that is not text",
            """["a"]""" to "not one JSON object",
            """$good $good""" to "not one JSON object",
            """{"text": "a"""" to "not one JSON object",
            """{text: "a"}""" to "not one JSON object",
            """{}""" to "the keys none",
            """{"text": "a", "prompt": "b"}""" to "the keys 'text', 'prompt'",
            """{"messages": []}""" to "'messages'",
            """{"prompt": "a"}""" to "no 'completion'",
            """{"prompt": "a", "completion": ""}""" to "an empty 'completion'",
            """{"prompt": "a", "completion": "b", "choices": "b"}""" to "not a list of text",
            """{"prompt": "a", "completion": "b", "choices": ["b"]}""" to "the choices [b]",
            """{"prompt": "a", "completion": "b", "choices": ["c", "d"]}""" to "not among the choices",
        )) {
            val error = assertFailsWith<ZoException.Data>(line) { readRecords(data("$good\n\n$line\n")) }
            assertContains(error.where, ":3")
            assertContains(error.found, found)
        }
        assertEquals("no examples", assertFailsWith<ZoException.Data> { readRecords(data("\n \n")) }.found)
        assertFailsWith<ZoException.Data> { readRecords(output.resolve("nothing.jsonl")) }
        val latin = data("").apply { writeBytes(byteArrayOf(0x7b, 0xe9.toByte(), 0x7d)) }
        assertContains(assertFailsWith<ZoException.Data> { readRecords(latin) }.found, "not UTF-8")
        assertEquals(1, readRecords(data("\uFEFF$good\r\n")).size)
    }

    fun examplesThatTheModelCannotLearnAreRefused() = Dataset().use { dataset ->
        fun refused(record: Record, choices: Boolean = false, ids: (String) -> LongArray): String {
            val tokenizer = object : Tokenizer {
                override fun encode(text: String, special: Boolean) = ids(text)

                override fun close() = Unit
            }
            return assertFailsWith<ZoException.Data> { dataset.add(listOf(record), tokenizer, facts, choices) }.found
        }
        val text = Record.Text("here", "a")
        assertContains(refused(text) { longArrayOf(facts.vocabulary) }, "id ${facts.vocabulary}")
        assertContains(refused(text) { longArrayOf(1) }, "none of which can be predicted")
        assertEquals("no 'choices'", refused(text, choices = true) { longArrayOf(1, 2) })
        val pair = Record.Completion("here", "a", listOf("b", "c"), 0)
        assertContains(refused(pair) { longArrayOf(1, 2) }, "the same tokens")
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
        "data: examples that the model cannot learn are refused" to ::examplesThatTheModelCannotLearnAreRefused,
        "bundles without what the app needs are refused" to ::bundlesWithoutWhatTheAppNeedsAreRefused,
        "requests outlive the process" to ::requestsOutliveTheProcess,
        "charts have few points" to ::chartsHaveFewPoints,
    )
}
