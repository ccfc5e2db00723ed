package zoexport.app.training

import java.io.File
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import zoexport.session.TrainingSession
import zoexport.session.ZoException

/**
 * Writes what a session has trained as a ZIP archive of the files that `peft.PeftModel.from_pretrained` loads. The archive is
 * made anew: only what is whole is to be shared.
 *
 * @throws ZoException.InvalidArgument the bundle trains no adapter, or nothing was trained.
 */
fun writeAdapter(session: TrainingSession, target: File) {
    if (session.info.steps == 0L) {
        throw ZoException.InvalidArgument("the adapter", "no step", "something that was trained", "Train it first.")
    }
    val folder = target.resolveSibling("${target.name}.peft")
    try {
        target.absoluteFile.parentFile.mkdirs()
        session.exportAdapter(folder, replace = true)
        ZipOutputStream(target.outputStream().buffered()).use { zip ->
            for (part in folder.listFiles()!!.sorted()) {
                zip.putNextEntry(ZipEntry(part.name))
                part.inputStream().use { it.copyTo(zip) }
            }
        }
    } finally {
        folder.deleteRecursively()
    }
}
