package zoexport.app.training

import java.io.File
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import zoexport.session.TrainingSession
import zoexport.session.ZoException

/**
 * Writes the trained adapter of a state as a ZIP archive of the two files that `peft.PeftModel.from_pretrained` loads. The file
 * is whole or not changed.
 *
 * @throws ZoException.InvalidArgument the method trains something else than LoRA adapters.
 */
fun writeAdapter(bundle: File, state: File, target: File) = target.replaceWith { file ->
    val folder = file.resolveSibling(file.name + ".peft")
    try {
        TrainingSession.open(bundle).use { session ->
            session.attach(state, readOnly = true)
            session.exportAdapter(folder, replace = true)
        }
        ZipOutputStream(file.outputStream().buffered()).use { zip ->
            for (part in folder.listFiles()!!.sorted()) {
                zip.putNextEntry(ZipEntry(part.name))
                part.inputStream().use { it.copyTo(zip) }
            }
        }
    } finally {
        folder.deleteRecursively()
    }
}
