package zoexport.session

/**
 * Reports a failure of the session, with one type per status of `session.h`: the file, setting or call at fault, what is
 * there, what should be there, and what the user can do about it.
 */
sealed class ZoException(val where: String, val found: String, val expected: String, val fix: String) :
    RuntimeException("$where: found $found; expected $expected. $fix") {
    /** A call or an option cannot be used. */
    class InvalidArgument(where: String, found: String, expected: String, fix: String) :
        ZoException(where, found, expected, fix)
    /** A bundle is missing, altered, or has another version. */
    class Bundle(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    /** A state is missing, damaged, locked, full, or belongs to another bundle. */
    class State(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    /** Examples cannot be used. */
    class Data(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    /** A program could not be loaded or run. */
    class Engine(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    /** The loss left its range. The last good state is kept. */
    class Diverged(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    /** A callback or `cancel` asked to stop. Progress is saved. */
    class Cancelled(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    /** The library has a defect, or memory is exhausted. */
    class Internal(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)
    /** A job needs the user's choice between two meanings. */
    class Question(where: String, found: String, expected: String, fix: String) : ZoException(where, found, expected, fix)

    private companion object {
        /** In the order of `zo_status`. */
        val types = listOf(
            ::InvalidArgument, ::Bundle, ::State, ::Data, ::Engine, ::Diverged, ::Cancelled, ::Internal, ::Question,
        )

        @JvmStatic
        @Suppress("unused") // by native code
        private fun of(status: Int, where: String, found: String, expected: String, fix: String): ZoException =
            types[status - 1](where, found, expected, fix)
    }
}
