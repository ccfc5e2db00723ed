import java.io.File
import kotlin.io.path.createTempDirectory
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotEquals
import kotlin.test.assertTrue
import zoexport.session.AdapterFormat
import zoexport.session.GenerateOptions
import zoexport.session.Generation
import zoexport.session.Message
import zoexport.session.Outtype
import zoexport.session.Stop
import zoexport.session.TrainingSession
import zoexport.session.ZoException

/** Text with adapters that are switched in between: what Python's host generated. */
class GenerateTest(private val case: File) {
    private val cases = Json.parse(case.resolve("cases.json").readText()).items()
    private val prompt = "The film is a warm and café"

    private fun open() = TrainingSession.open(case.resolve("bundle")).apply {
        for (name in listOf("a", "b")) loadAdapter(name, case.resolve(name))
    }

    private fun options(of: Any?) = GenerateOptions(
        maxNewTokens = of["max_new_tokens"].int(),
        stop = of["stop"].items().map { it as String },
        adapter = of["adapter"] as String?,
        temperature = of["temperature"].double(),
        topK = of["top_k"].int(),
        topP = of["top_p"].double(),
        minP = of["min_p"].double(),
        repetitionPenalty = of["repetition_penalty"].double(),
        seed = (of["seed"] as String).toULong(),
    )

    private fun made(session: TrainingSession, of: Any?, onText: (String) -> Boolean): Generation {
        val messages = of["messages"].items().map { Message(it.items()[0] as String, it.items()[1] as String) }
        return when (val text = of["prompt"] as String?) {
            null -> session.generate(messages, options(of), onText)
            else -> session.generate(text, options(of), onText)
        }
    }

    fun textsAreThoseOfPython() = open().use { session ->
        assertEquals(listOf("a", "b"), session.info.adapters)
        for (expected in cases) {
            val pieces = StringBuilder()
            val made = made(session, expected) { pieces.append(it); false }
            assertEquals(expected["text"], made.text)
            assertEquals(made.text, pieces.toString())
            assertContentEquals(expected["tokens"].items().map { it.int().toLong() }.toLongArray(), made.tokens)
            assertEquals(expected["reason"], made.stop.name.lowercase())
            assertEquals(expected["prompt_tokens"].int().toLong(), made.promptTokens)
        }
    }

    fun adaptersComeAndGo() = open().use { session ->
        val options = GenerateOptions(maxNewTokens = 12)
        val plain = session.generate(prompt, options).text
        val adapted = session.generate(prompt, options.copy(adapter = "a")).text
        assertNotEquals(plain, adapted)
        session.dropAdapter("b")
        assertEquals(listOf("a"), session.info.adapters)
        assertFailsWith<ZoException.InvalidArgument> { session.generate(prompt, options.copy(adapter = "b")) }
        assertFailsWith<ZoException.State> { session.loadAdapter("a", case.resolve("bundle")) }
        assertEquals(adapted, session.generate(prompt, options.copy(adapter = "a")).text)
        assertEquals(plain, session.generate(prompt, options.copy(untrained = true)).text)
    }

    fun adaptersLeaveAsFiles() = open().use { session ->
        val folder = createTempDirectory().toFile()
        try {
            val file = folder.resolve("é.gguf")
            session.exportAdapter(file, AdapterFormat.GGUF, Outtype.Q8_0)
            assertContentEquals(case.resolve("exported.gguf").readBytes(), file.readBytes())
            val peft = folder.resolve("peft")
            session.exportAdapter(peft)
            for (part in case.resolve("exported").listFiles()!!) {
                assertContentEquals(part.readBytes(), peft.resolve(part.name).readBytes())
            }
            assertFailsWith<ZoException.InvalidArgument> { session.exportAdapter(file) }
            assertFailsWith<ZoException.InvalidArgument> {
                session.exportAdapter(folder.resolve("f16"), outtype = Outtype.F16)
            }
            session.exportAdapter(peft, replace = true)
            assertEquals(setOf("é.gguf", "peft"), folder.list()!!.toSet())
        } finally {
            folder.deleteRecursively()
        }
    }

    fun keptCachesAreReadOn() = open().use { session ->
        val options = GenerateOptions(maxNewTokens = 5, keep = true)
        assertEquals(0, session.generate(prompt, options).keptTokens)
        assertTrue(session.generate("$prompt and more", options).keptTokens > 0)
        session.forget()
        assertEquals(0, session.generate(prompt, options).keptTokens)
    }

    fun callersEndTexts() = open().use { session ->
        val made = session.generate(prompt, GenerateOptions(maxNewTokens = 20)) { true }
        assertEquals(Stop.CALLER, made.stop)
        assertTrue(made.tokens.size < 20)
        val thrown = assertFailsWith<IllegalStateException> { session.generate(prompt) { error("the host's own") } }
        assertEquals("the host's own", thrown.message)
        assertFailsWith<ZoException.InvalidArgument> {
            session.generate(prompt) { session.generate(prompt); false }
        }
        assertEquals(Stop.LENGTH, session.generate(prompt, GenerateOptions(maxNewTokens = 1)).stop)
    }

    fun whatCannotBeUsed() = open().use { session ->
        for (options in listOf(
            GenerateOptions(maxNewTokens = 0),
            GenerateOptions(maxNewTokens = -1),
            GenerateOptions(topK = -1),
            GenerateOptions(temperature = -1.0),
            GenerateOptions(stop = listOf("")),
        )) {
            assertFailsWith<ZoException.InvalidArgument> { session.generate(prompt, options) }
        }
        assertFailsWith<ZoException.InvalidArgument> { session.generate(emptyList<Message>()) }
    }

    fun tests() = mapOf(
        "texts are those of Python" to ::textsAreThoseOfPython,
        "adapters come and go" to ::adaptersComeAndGo,
        "adapters leave as files" to ::adaptersLeaveAsFiles,
        "kept caches are read on" to ::keptCachesAreReadOn,
        "callers end texts" to ::callersEndTexts,
        "texts: what cannot be used" to ::whatCannotBeUsed,
    )
}
