package zoexport.session

/** The native libraries, loaded by whatever touches [load] first. */
internal object Library {
    private const val ABI_VERSION = 2

    init {
        System.loadLibrary("zoexport_jni")
        val version = nativeAbiVersion()
        if (version != ABI_VERSION) {
            throw ZoException.Internal(
                "libzoexport", "version $version of its interface", "version $ABI_VERSION", "Build the app again.",
            )
        }
    }

    /** Returns once the libraries are loaded. */
    fun load() = Unit

    @JvmStatic
    private external fun nativeAbiVersion(): Int
}

/** A path or name as the library takes it: it would end at a zero character. */
internal fun String.checked(where: String): String {
    if ('\u0000' in this) {
        throw ZoException.InvalidArgument(where, "a zero character", "text without one", "Correct the name.")
    }
    return this
}

/** A count or index, which the library takes without a sign. */
internal fun Long.notNegative(where: String): Long {
    if (this < 0) {
        throw ZoException.InvalidArgument(where, toString(), "a number of at least 0", "Choose another one.")
    }
    return this
}
