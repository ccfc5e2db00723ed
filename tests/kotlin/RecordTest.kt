import java.io.File
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import zoexport.session.Dataset
import zoexport.session.ZoException

/** Data files, as `zoexport train` takes them. */
class RecordTest(private val bundle: File, private val texts: File, private val output: File) {
    fun examplesAreThoseOfPython() {
        for (name in listOf("data", "mixed")) Dataset().use { expected ->
            expected.load(texts.resolve("$name.examples.jsonl"))
            Dataset().use { found ->
                val loss = if (name == "data") "choices" else "full"
                val report = found.read(texts.resolve("$name.jsonl"), bundle, mapOf("loss" to loss))
                assertEquals(texts.resolve("$name.shortened").readText().toLong(), report.shortened)
                assertEquals(found.size, report.examples)
                assertEquals(expected.size, found.size)
                assertEquals(expected.digest, found.digest)
            }
        }
    }

    fun rowsAreThoseOfPython() = Dataset().use { found ->
        found.read(texts.resolve("mixed.jsonl"), bundle, mapOf("pack" to true))
        assertEquals(texts.resolve("mixed.packed").readText(), found.digest)
    }

    fun whatCannotBeUsedIsRefusedWithItsLine() = Dataset().use { dataset ->
        val good = """{"text": "a warm film"}"""
        fun refused(file: File, loss: String = "full") = assertFailsWith<ZoException.Data>(file.readText()) {
            dataset.read(file, bundle, mapOf("loss" to loss))
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
        assertEquals("no 'choices'", refused(data(good), "choices").found)
        assertFailsWith<ZoException.Data> { dataset.read(output.resolve("nothing.jsonl"), bundle) }
        assertFailsWith<ZoException.Bundle> { dataset.read(data(good), output.resolve("no bundle")) }
        assertFailsWith<ZoException.InvalidArgument> { dataset.read(data(good), bundle, trustedKeys = listOf("no key")) }
        assertEquals(0, dataset.size)
    }

    private fun data(content: String): File = output.apply { mkdirs() }.resolve("data.jsonl").apply { writeText(content) }

    fun tests() = mapOf(
        "data: examples are those of Python" to ::examplesAreThoseOfPython,
        "data: rows are those of Python" to ::rowsAreThoseOfPython,
        "data: what cannot be used is refused with its line" to ::whatCannotBeUsedIsRefusedWithItsLine,
    )
}
