package zoexport.session

import java.io.File

/** Unpacks a bundle in one file, which `zoexport pack` makes (docs/bundle.md). */
object PackedBundle {
    /**
     * Writes the bundle in [file] to [folder], completely or not at all. Checks signature and hashes.
     *
     * @param replace whether to replace what is at [folder].
     * @param onUnpacked receives the written bytes and their total; true ends it, with [ZoException.Cancelled].
     * @throws ZoException.Bundle if it is no packed bundle, is damaged, or none of [trustedKeys] signed it.
     */
    fun unpack(
        file: File, folder: File, replace: Boolean = false, trustedKeys: List<String>? = null,
        onUnpacked: OnPart = { _, _ -> false },
    ) = Native.unpack(
        file.path, folder.path, options("replace" to replace, "trusted_keys" to trustedKeys), Listener(onUnpacked),
    )
}

/**
 * Names the engines for which a bundle has programs, as [TrainingSession.open] and [JobRequest] take them.
 *
 * @property own the engine that runs the programs by default.
 * @property fallback the CPU's engine, if the bundle has programs for it beside a GPU's.
 */
class BundleEngines private constructor(val own: String, val fallback: String?) {
    /**
     * Returns the engine to offer after [engineName] (null: [own]) failed with [failure]; null if there is none, or no
     * engine failed. The user has to choose it: nothing falls back by itself.
     */
    fun insteadOf(engineName: String?, failure: ZoException): String? =
        fallback.takeIf { failure is ZoException.Engine && engineName != it }

    companion object {
        /** Reads the manifest alone: it also works for a bundle that cannot be opened for lack of a GPU. */
        fun of(bundle: File, trustedKeys: List<String>? = null): BundleEngines {
            val manifest = parsed(Native.manifest(bundle.path, options("trusted_keys" to trustedKeys)))
            return BundleEngines(manifest.getString("engine"), manifest.optJSONObject("fallback")?.getString("engine"))
        }
    }
}
