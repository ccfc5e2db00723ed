@file:Suppress("UNCHECKED_CAST")

import org.json.JSONArray
import org.json.JSONObject
import org.json.JSONTokener

/** Reads JSON for the tests: objects are maps, numbers doubles. */
object Json {
    fun parse(text: String): Any? = plain(JSONTokener(text).nextValue())

    private fun plain(value: Any?): Any? = when (value) {
        is JSONObject -> value.keys().asSequence().associateWith { plain(value.get(it)) }
        is JSONArray -> List(value.length()) { plain(value.get(it)) }
        is Number -> value.toDouble()
        JSONObject.NULL -> null
        else -> value
    }
}

/** Returns the member of a parsed object; its absence is an error. */
operator fun Any?.get(key: String): Any? = (this as Map<String, Any?>).getValue(key)
fun Any?.members(): Map<String, Any?> = this as Map<String, Any?>
fun Any?.items(): List<Any?> = this as List<Any?>
fun Any?.text(): String = this as String
fun Any?.int(): Int = (this as Double).toInt()
fun Any?.strings(): List<String> = items().map { it.text() }
fun Any?.double(): Double = this as Double
