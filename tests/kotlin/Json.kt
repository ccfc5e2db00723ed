@file:Suppress("UNCHECKED_CAST")

/** A small reader of JSON for the tests: objects are maps, numbers doubles. */
class Json private constructor(private val text: String) {
    private var at = 0

    private fun value(): Any? = when (skip()) {
        '{' -> buildMap { sequence('}') { put(value() as String, run { expect(':'); value() }) } }
        '[' -> buildList { sequence(']') { add(value()) } }
        '"' -> string()
        else -> literal()
    }

    private fun sequence(end: Char, entry: () -> Unit) {
        at++
        if (skip() == end) {
            at++
            return
        }
        do {
            entry()
        } while (skip().also { at++ } == ',')
        check(text[at - 1] == end) { "expected $end at ${at - 1}" }
    }

    private fun string(): String = buildString {
        at++
        while (text[at] != '"') {
            val next = text[at++]
            if (next != '\\') {
                append(next)
                continue
            }
            when (val escaped = text[at++]) {
                'b' -> append('\b')
                'f' -> append('\u000C')
                'n' -> append('\n')
                'r' -> append('\r')
                't' -> append('\t')
                'u' -> append(text.substring(at, at + 4).toInt(16).toChar()).also { at += 4 }
                else -> append(escaped)
            }
        }
        at++
    }

    private fun literal(): Any? {
        val begin = at
        while (at < text.length && text[at] !in ",]} \n") at++
        return when (val word = text.substring(begin, at)) {
            "null" -> null
            "true" -> true
            "false" -> false
            else -> word.toDouble()
        }
    }

    private fun expect(wanted: Char) = check(skip() == wanted) { "expected $wanted at $at" }.also { at++ }

    private fun skip(): Char {
        while (text[at].isWhitespace()) at++
        return text[at]
    }

    companion object {
        fun parse(text: String): Any? = Json(text).value()
    }
}

/** The member of a parsed object; its absence is an error. */
operator fun Any?.get(key: String): Any? = (this as Map<String, Any?>).getValue(key)
fun Any?.members(): Map<String, Any?> = this as Map<String, Any?>
fun Any?.items(): List<Any?> = this as List<Any?>
fun Any?.text(): String = this as String
fun Any?.int(): Int = (this as Double).toInt()
fun Any?.strings(): List<String> = items().map { it.text() }
fun Any?.double(): Double = this as Double
