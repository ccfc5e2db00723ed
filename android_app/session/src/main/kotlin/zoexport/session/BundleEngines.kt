package zoexport.session

import java.io.File

/**
 * The engines that a bundle has programs for, as [TrainingSession.open] and [JobRequest] take them.
 *
 * @property own the one that takes its programs where none is chosen.
 * @property fallback the CPU's, where the bundle has programs for it beside a GPU's; null: none.
 */
class BundleEngines internal constructor(val own: String, val fallback: String?) {
    /**
     * The engine that may do what [engineName] (null: [own]) could not, when opening or training failed so; null: no other one, or
     * no failure of an engine. It is the person's to choose: nothing falls back by itself.
     */
    fun insteadOf(engineName: String?, failure: ZoException): String? =
        fallback.takeIf { failure is ZoException.Engine && engineName != it }

    companion object {
        /**
         * Reads the manifest alone: also of a bundle that cannot be opened here, for want of a GPU.
         *
         * @param trustedKeys as [TrainingSession.open] takes them.
         * @throws ZoException.Bundle missing, altered, of another version, or signed by none of the keys.
         */
        fun of(bundle: File, trustedKeys: List<String>? = null): BundleEngines {
            Library.load()
            return nativeOf(bundle.path.checked("bundle"), trustedKeys?.joinToString("\n")?.checked("trustedKeys"))
        }

        @JvmStatic private external fun nativeOf(bundle: String, trustedKeys: String?): BundleEngines
    }
}
