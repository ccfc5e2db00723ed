package zoexport.app.training

import com.google.gson.Gson
import com.google.gson.JsonElement
import com.google.gson.JsonObject
import com.google.gson.JsonParseException
import com.google.gson.JsonPrimitive
import com.google.gson.stream.JsonReader
import com.google.gson.stream.JsonToken
import java.io.File
import java.io.IOException
import java.io.StringReader
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException
import zoexport.session.ZoException

private const val SHAPES = """{"text"}, {"prompt", "completion"} or {"prompt", "completion", "choices"}"""

/** A line of a data file. [where] names the file and the line. */
sealed interface Record {
    val where: String

    /** Every token is a label. */
    class Text(override val where: String, val text: String) : Record

    /** [completions] to compare, one where there are no choices; [target] is the index of the right one. */
    class Completion(override val where: String, val prompt: String, val completions: List<String>, val target: Int) :
        Record
}

/**
 * The records of a JSON Lines file, as docs/cli.md has them but for chats: a chat template is a program in a language
 * that no library for Android runs.
 *
 * @throws ZoException.Data the file cannot be read or is empty, or a line is no example; the message has its number.
 */
fun readRecords(file: File): List<Record> {
    val lines = try {
        file.readBytes()
    } catch (error: IOException) {
        throw ZoException.Data(
            "data $file", error.message ?: "an unreadable file", "a readable file", "Choose another file.",
        )
    }
    val records = decoded(lines, file).removePrefix("\uFEFF").split('\n')
        .mapIndexedNotNull { index, line -> if (line.isBlank()) null else parse(line, "${file.name}:${index + 1}") }
    if (records.isEmpty()) {
        throw ZoException.Data(
            "data ${file.name}", "no examples", "one JSON object a line: $SHAPES", "Give one example.",
        )
    }
    return records
}

private fun decoded(bytes: ByteArray, file: File): String = try {
    Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString()
} catch (_: CharacterCodingException) {
    throw ZoException.Data("data ${file.name}", "bytes that are not UTF-8", "UTF-8 text", "Convert the file to UTF-8.")
}

private fun parse(line: String, where: String): Record {
    val content = strictly(line, where)
    val isText = content.has("text")
    val isPrompt = content.has("prompt") || content.has("completion") || content.has("choices")
    if (content.has("messages")) {
        throw ZoException.Data(
            where, "'messages'", SHAPES, "Train chats with 'zoexport train', or write prompt and completion as text.",
        )
    }
    if (isText == isPrompt) {
        val keys = content.keySet().joinToString { "'$it'" }.ifEmpty { "none" }
        throw ZoException.Data(where, "the keys $keys", "exactly one of the shapes $SHAPES", "Rename or remove keys.")
    }
    return if (isText) Record.Text(where, content.text("text", where)) else completion(content, where)
}

private fun completion(content: JsonObject, where: String): Record {
    val prompt = content.text("prompt", where)
    val completion = content.text("completion", where)
    if (completion.isEmpty()) {
        throw ZoException.Data(where, "an empty 'completion'", "text to be learned", "Give it, or remove the line.")
    }
    val listed = content.get("choices") ?: return Record.Completion(where, prompt, listOf(completion), 0)
    if (!listed.isJsonArray || !listed.asJsonArray.all { it.isText() }) {
        throw ZoException.Data(
            where, "'choices' that are not a list of text", "completions to compare",
            "Write \"choices\": [\" yes\", \" no\"].",
        )
    }
    val choices = listed.asJsonArray.map { it.asString }
    if (choices.size < 2 || "" in choices || choices.toSet().size < choices.size) {
        throw ZoException.Data(
            where, "the choices $choices", "at least two different completions, none of them empty",
            "Remove repeated and empty choices.",
        )
    }
    if (completion !in choices) {
        throw ZoException.Data(
            where, "the completion '$completion', which is not among the choices $choices",
            "one of the choices, spaces included", "Make the completion equal to one of the choices.",
        )
    }
    return Record.Completion(where, prompt, choices, choices.indexOf(completion))
}

private fun strictly(line: String, where: String): JsonObject {
    val content = try {
        val reader = JsonReader(StringReader(line))
        val value = Gson().getAdapter(JsonElement::class.java).read(reader)
        (value as? JsonObject).takeIf { reader.peek() == JsonToken.END_DOCUMENT }
    } catch (_: JsonParseException) {
        null
    } catch (_: IOException) { // of which a malformed text is one
        null
    }
    return content ?: throw ZoException.Data(
        where, "a line that is not one JSON object", "one JSON object a line: $SHAPES", "Correct the line.",
    )
}

private fun JsonElement.isText(): Boolean = this is JsonPrimitive && isString

private fun JsonObject.text(key: String, where: String): String {
    val value = get(key)
        ?: throw ZoException.Data(where, "no '$key'", "the keys of $SHAPES", "Add '$key'.")
    if (!value.isText()) {
        throw ZoException.Data(where, "'$key' that is not text", "text", "Write '$key' as a JSON string.")
    }
    return value.asString
}
