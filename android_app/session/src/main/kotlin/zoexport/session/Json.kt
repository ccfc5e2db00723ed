package zoexport.session

import java.io.File
import java.math.BigInteger
import org.json.JSONArray
import org.json.JSONObject

/** Writes options of a call, without those that are null. */
internal fun options(vararg given: Pair<String, Any?>): String = json(given.toMap().filterValues { it != null })

internal fun json(value: Any?): String = plain(value).toString()

private fun plain(value: Any?): Any = when (value) {
    null -> JSONObject.NULL
    is Map<*, *> -> JSONObject().apply { for ((key, entry) in value) put(key.toString(), plain(entry)) }
    is Iterable<*> -> JSONArray().apply { value.forEach { put(plain(it)) } }
    is ULong -> BigInteger(value.toString())
    is UInt -> value.toLong()
    is File -> if ('\u0000' !in value.path) value.path else throw ZoException.InvalidArgument(
        "a path or name", "a zero character", "text without one", "Correct the name.",
    )
    is Enum<*> -> value.name.lowercase()
    is Float -> plain(value.toDouble())
    is Double -> if (value.isFinite()) value else value.toString() // the library refuses text, and names the option
    else -> value
}

private val seed = Regex("\"seed\": ?(\\d+)")

/** Reads an object. A seed becomes text: org.json would read 64 bits without a sign as a double. */
internal fun parsed(json: String) = JSONObject(seed.replace(json, "\"seed\":\"$1\""))

/** Reads settings; a seed becomes a [ULong]. */
internal fun JSONObject.settings(): Map<String, Any> = keys().asSequence().filterNot(::isNull)
    .associateWith { if (it == "seed") getString(it).toULong() else get(it) }

internal fun <T> JSONArray.items(read: JSONArray.(Int) -> T): List<T> = List(length()) { read(it) }

internal fun <T> JSONArray.each(read: (JSONObject) -> T): List<T> = items { read(getJSONObject(it)) }

internal fun JSONObject.double(key: String): Double? = if (isNull(key)) null else getDouble(key)

internal fun JSONObject.text(key: String): String? = if (isNull(key)) null else getString(key)

/** Reads the entry of an enum by its name in lower case. */
internal inline fun <reified T : Enum<T>> JSONObject.entry(key: String): T = enumValueOf(getString(key).uppercase())
