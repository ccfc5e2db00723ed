package zoexport.app.training

import zoexport.session.StepProgress
import zoexport.session.ZoException

/** What a failure means to the user: which screen can put it right. */
enum class ProblemKind { BAD_BUNDLE, BAD_DATA, LOW_DISK, DIVERGED, OTHER }

/** A failure with its one message: where, what was found, what was expected, what to do. */
data class Problem(val kind: ProblemKind, val message: String) {
    companion object {
        fun of(error: Throwable): Problem {
            val kind = when (error) {
                is ZoException.Bundle, is ZoException.Engine -> ProblemKind.BAD_BUNDLE
                is ZoException.Data -> ProblemKind.BAD_DATA
                is LowDisk -> ProblemKind.LOW_DISK
                is ZoException.Diverged -> ProblemKind.DIVERGED
                else -> ProblemKind.OTHER
            }
            return Problem(kind, error.message ?: error.toString())
        }
    }
}

/** Not enough room for a run's files. */
class LowDisk(place: String, free: Long, needed: Long) : RuntimeException(
    "$place: found ${free / 1_000_000} MB free; expected at least ${needed / 1_000_000} MB. " +
        "Free some space; the run goes on from where it is.",
)

/** Where a run is. */
sealed interface RunState {
    /** Nothing was started, or it was cancelled. */
    data object Idle : RunState

    /** The bundle is being opened, or the data tokenized. */
    data object Preparing : RunState

    /** Steps are taken; [progress] is the last one. */
    data class Running(val progress: StepProgress) : RunState

    /** The state is saved. [obstacle] is what training waits for; null: the user paused it. */
    data class Paused(val obstacle: Obstacle?) : RunState

    data class Failed(val problem: Problem) : RunState

    /** The state has all [steps]. */
    data class Done(val steps: Long) : RunState
}
