package zoexport.app.training

import com.google.gson.JsonArray
import com.google.gson.JsonObject
import java.io.File
import java.io.OutputStream
import java.io.RandomAccessFile
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.file.Files
import java.nio.file.StandardCopyOption
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import zoexport.session.SlotInfo
import zoexport.session.TrainingSession
import zoexport.session.ZoException

private const val CONFIG = "adapter_config.json"

/**
 * Writes what a session has trained as a ZIP archive of the two files that `peft.PeftModel.from_pretrained` loads, as
 * `zoexport adapter export --format peft` does. The file is whole or not changed.
 *
 * @throws ZoException.InvalidArgument the method trains something else than LoRA adapters, or nothing was trained.
 */
fun writeAdapter(session: TrainingSession, bundle: File, target: File) {
    val slots = session.slots
    if (slots.none { it.name.startsWith("lora_B.") } || !slots.all { it.name.startsWith("lora_") }) {
        throw ZoException.InvalidArgument(
            "bundle ${bundle.name}", "the method ${session.info.method}, which trains no adapter", "LoRA adapters",
            "Copy the state folder, and use 'zoexport adapter export' on a computer.",
        )
    }
    if (session.info.steps == 0L) {
        throw ZoException.InvalidArgument("the adapter", "no step", "something that was trained", "Train it first.")
    }
    target.replaceWith { file ->
        ZipOutputStream(file.outputStream().buffered()).use { zip ->
            zip.putNextEntry(ZipEntry(CONFIG))
            bundle.resolve(CONFIG).inputStream().use { it.copyTo(zip) }
            zip.putNextEntry(ZipEntry("adapter_model.safetensors"))
            writeTensors(session, slots, zip)
        }
    }
}

/** Writes a file that is whole or not changed: under another name, synced, then renamed. */
private fun File.replaceWith(write: (File) -> Unit) {
    absoluteFile.parentFile.mkdirs()
    val temporary = File("$path.tmp")
    try {
        write(temporary)
        RandomAccessFile(temporary, "rw").use { it.fd.sync() }
        Files.move(temporary.toPath(), toPath(), StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.ATOMIC_MOVE)
    } finally {
        temporary.delete()
    }
}

/** safetensors: the header's length, the header, the values. PEFT keeps both matrices transposed. */
private fun writeTensors(session: TrainingSession, slots: List<SlotInfo>, out: OutputStream) {
    val header = JsonObject().apply { add("__metadata__", JsonObject().apply { addProperty("format", "pt") }) }
    var at = 0L
    for (slot in slots) {
        header.add(keyOf(slot), JsonObject().apply {
            addProperty("dtype", "F32")
            add("shape", JsonArray().apply { slot.shape.reversed().forEach { add(it) } })
            add("data_offsets", JsonArray().apply { add(at); add(at + 4 * slot.elements) })
        })
        at += 4 * slot.elements
    }
    val text = header.toString().toByteArray()
    val padded = text + ByteArray((8 - text.size % 8) % 8) { ' '.code.toByte() }
    out.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(padded.size.toLong()).array())
    out.write(padded)
    for (slot in slots) {
        val (rows, columns) = slot.shape.map { it.toInt() }
        val values = session.readSlot(slot.name)
        val bytes = ByteBuffer.allocate(4 * values.size).order(ByteOrder.LITTLE_ENDIAN)
        for (column in 0 until columns) for (row in 0 until rows) bytes.putFloat(values[row * columns + column])
        out.write(bytes.array())
    }
}

private fun keyOf(slot: SlotInfo): String {
    val (half, module) = slot.name.split('.', limit = 2)
    return "base_model.model.$module.$half.weight"
}
