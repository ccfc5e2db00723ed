package zoexport.session

/**
 * A failure of the session, one type for each status of `session.h`.
 *
 * @property where the file, setting or call that is at fault.
 * @property found what is there.
 * @property expected what should be there.
 * @property fix what the user can do about it.
 */
sealed class ZoException(
    val where: String,
    val found: String,
    val expected: String,
    val fix: String,
) : RuntimeException("$where: found $found; expected $expected. $fix") {
    /** A call or a setting that cannot be used. */
    class InvalidArgument(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)

    /** A bundle that is missing, altered, or of another version. */
    class Bundle(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)

    /** A state that is missing, damaged, locked, full, or of another bundle. */
    class State(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)

    /** Examples that cannot be used. */
    class Data(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)

    /** A program that could not be loaded or run. */
    class Engine(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)

    /** The loss left its range; the last good state is kept. */
    class Diverged(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)

    /** The progress callback asked to stop; what was reached is saved. */
    class Cancelled(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)

    /** A defect or exhausted memory. */
    class Internal(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)

    /** Of a job: the person has to say which of two things is meant. */
    class Question(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)

    private companion object {
        /** Called by the JNI glue, with a zo_status other than ZO_OK. */
        @JvmStatic
        private fun of(code: Int, where: String, found: String, expected: String, fix: String): ZoException =
            when (code) {
                1 -> InvalidArgument(where, found, expected, fix)
                2 -> Bundle(where, found, expected, fix)
                3 -> State(where, found, expected, fix)
                4 -> Data(where, found, expected, fix)
                5 -> Engine(where, found, expected, fix)
                6 -> Diverged(where, found, expected, fix)
                7 -> Cancelled(where, found, expected, fix)
                9 -> Question(where, found, expected, fix)
                else -> Internal(where, found, expected, fix)
            }
    }
}
