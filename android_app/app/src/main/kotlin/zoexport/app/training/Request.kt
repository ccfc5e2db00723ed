package zoexport.app.training

import com.google.gson.Gson
import com.google.gson.JsonObject
import com.google.gson.JsonParseException
import java.io.File
import java.nio.file.Files
import java.nio.file.StandardCopyOption

/**
 * What is to be trained. It is all that a process needs to go on with a run that another one began.
 *
 * @property bundle the bundle's folder.
 * @property data examples as JSON Lines (docs/cli.md).
 * @property state the state's folder; made by the first step.
 * @property steps in total.
 */
data class Request(val bundle: File, val data: File, val state: File, val steps: Long)

/** Keeps the request of the run that is under way in [file], so that it outlives the process. */
class RequestStore(private val file: File) {
    /** The request; null where there is none, or where the file is damaged. */
    fun load(): Request? {
        if (!file.isFile) return null
        return try {
            val content = Gson().fromJson(file.readText(), JsonObject::class.java)
            val path = { key: String -> File(content.get(key).asString) }
            Request(path("bundle"), path("data"), path("state"), content.get("steps").asLong)
        } catch (_: JsonParseException) {
            null
        } catch (_: NullPointerException) {
            null
        }
    }

    fun save(request: Request) {
        val content = JsonObject().apply {
            addProperty("bundle", request.bundle.path)
            addProperty("data", request.data.path)
            addProperty("state", request.state.path)
            addProperty("steps", request.steps)
        }
        file.replaceWith { it.writeText(content.toString()) }
    }

    fun clear() {
        file.delete()
    }
}

/** Writes a file that is whole or not changed: under another name, synced, then renamed. */
internal fun File.replaceWith(write: (File) -> Unit) {
    absoluteFile.parentFile.mkdirs()
    val temporary = File("$path.tmp")
    try {
        write(temporary)
        java.io.RandomAccessFile(temporary, "rw").use { it.fd.sync() }
        Files.move(temporary.toPath(), toPath(), StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.ATOMIC_MOVE)
    } finally {
        temporary.delete()
    }
}
