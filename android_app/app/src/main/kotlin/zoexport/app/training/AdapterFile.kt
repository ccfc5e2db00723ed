package zoexport.app.training

import java.io.File
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import zoexport.session.AdapterFormat
import zoexport.session.Outtype
import zoexport.session.TrainingSession
import zoexport.session.ZoException

/** The one file that is shared: PEFT's files in a ZIP archive, or llama.cpp's. [mime] is its type. */
enum class AdapterFile(val fileName: String, val mime: String) {
    PEFT("adapter.zip", "application/zip"),
    GGUF("adapter.gguf", "application/octet-stream"),
    ;

    /**
     * Writes the adapter of a session into [folder], and replaces an earlier one.
     *
     * @throws ZoException.InvalidArgument if the bundle trains no adapter, or nothing was trained.
     */
    fun write(session: TrainingSession, folder: File): File {
        if (session.info.steps == 0L) {
            throw ZoException.InvalidArgument("the adapter", "no step", "something that was trained", "Train it first.")
        }
        folder.mkdirs()
        val target = folder.resolve(fileName)
        if (this == GGUF) {
            session.exportAdapter(target, AdapterFormat.GGUF, Outtype.F16, replace = true)
            return target
        }
        val parts = folder.resolve("peft")
        try {
            session.exportAdapter(parts, replace = true)
            ZipOutputStream(target.outputStream().buffered()).use { zip ->
                for (part in parts.listFiles()!!.sorted()) {
                    zip.putNextEntry(ZipEntry(part.name))
                    part.inputStream().use { it.copyTo(zip) }
                }
            }
        } finally {
            parts.deleteRecursively()
        }
        return target
    }
}
