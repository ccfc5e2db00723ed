package zoexport.app.training

import com.google.gson.Gson
import com.google.gson.JsonObject
import com.google.gson.JsonParseException
import java.io.File
import java.io.IOException
import zoexport.session.ZoException

/** What the app itself needs of a bundle's manifest; the session checks everything else. */
class BundleFacts private constructor(
    val folder: File,
    val id: String,
    val model: String,
    val method: String,
) {
    companion object {
        /** @throws ZoException.Bundle no bundle, or none with a tokenizer. */
        fun read(folder: File): BundleFacts {
            val file = folder.resolve("manifest.json")
            val manifest = try {
                Gson().fromJson(file.readText(), JsonObject::class.java)
            } catch (_: IOException) {
                null
            } catch (_: JsonParseException) {
                null
            }
            val facts = try {
                val model = manifest?.getAsJsonObject("model")
                BundleFacts(
                    folder,
                    manifest!!.get("bundle_id").asString,
                    model!!.get("name").asString,
                    manifest.get("method").asString,
                )
            } catch (_: NullPointerException) {
                null
            }
            if (facts == null || !folder.resolve(TOKENIZER).isFile) {
                throw ZoException.Bundle(
                    "bundle ${folder.name}",
                    if (facts == null) "no usable manifest.json" else "no $TOKENIZER",
                    "a folder written by 'zoexport compile'",
                    "Copy the whole folder to the phone, or compile the bundle again.",
                )
            }
            return facts
        }

        const val TOKENIZER = "tokenizer.json"
    }
}
