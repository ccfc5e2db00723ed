package zoexport.session

import java.io.File
import java.math.BigInteger
import kotlin.reflect.KClass
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

internal fun <T> list(json: String, read: (JSONObject) -> T): List<T> = JSONArray(json).items { read(getJSONObject(it)) }

/** Reads an entry as the type that is asked for; null or a missing one only where that type allows it. */
internal inline fun <reified T> JSONObject.of(key: String): T = decoded(if (isNull(key)) null else get(key), T::class) as T

internal fun decoded(value: Any?, type: KClass<*>): Any? = when {
    value is Number && type == Int::class -> value.toInt()
    value is Number && type == Long::class -> value.toLong()
    value is Number && type == Double::class -> value.toDouble()
    value is String && type == ULong::class -> value.toULong()
    value is String && type == File::class -> File(value)
    value is String && type.java.isEnum -> type.java.enumConstants.first { value.equals("$it", ignoreCase = true) }
    else -> value
}
