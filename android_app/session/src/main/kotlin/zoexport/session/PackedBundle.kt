package zoexport.session

import java.io.File

/** Called with the bytes that are written, of so many; true ends it. */
fun interface OnUnpacked {
    fun onUnpacked(done: Long, total: Long): Boolean
}

/** A bundle as one file, which `zoexport pack` makes (docs/bundle.md). */
object PackedBundle {
    /**
     * Writes the bundle in [file] to [folder], whole or not at all; its signature is checked first, its hashes on the way.
     *
     * @param replace what is at [folder] gives way.
     * @param trustedKeys as [TrainingSession.open] takes them.
     * @throws ZoException.Bundle no packed bundle, a damaged one, or one that none of the keys signed.
     * @throws ZoException.State too little room.
     * @throws ZoException.Cancelled [onUnpacked] returned true; what it throws comes out of here.
     */
    fun unpack(
        file: File,
        folder: File,
        replace: Boolean = false,
        trustedKeys: List<String>? = null,
        onUnpacked: OnUnpacked? = null,
    ) {
        Library.load()
        nativeUnpack(
            file.path.checked("file"), folder.path.checked("folder"), replace,
            trustedKeys?.joinToString("\n")?.checked("trustedKeys"), onUnpacked,
        )
    }

    @JvmStatic
    private external fun nativeUnpack(file: String, folder: String, replace: Boolean, keys: String?, listener: OnUnpacked?)
}
