package zoexport.app.training

import java.io.File
import kotlin.time.Duration
import kotlin.time.Duration.Companion.seconds
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.FlowCollector
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.flow.transformWhile
import zoexport.session.Dataset
import zoexport.session.TrainingSession
import zoexport.session.progress

/**
 * Trains a [Request] to its end.
 *
 * @param cache the folder of packed weights, see [TrainingSession.open].
 * @param poll how often it is asked whether training may go on.
 */
class TrainingJob(
    private val conditions: Conditions,
    private val cache: String?,
    private val poll: Duration = 30.seconds,
    private val dispatcher: CoroutineDispatcher = Dispatchers.IO,
) {
    /**
     * Collecting trains; a request whose state has steps goes on from them. Cancelling the collector finishes and saves
     * the step that runs. Where the phone is too hot or its battery low, the run is saved and waits.
     *
     * @throws LowDisk there is too little room; what was reached is saved.
     * @throws zoexport.session.ZoException bundle, data or state cannot be used, or the loss left its range.
     */
    fun run(request: Request): Flow<RunState> = flow {
        emit(RunState.Preparing)
        val place = request.state.absoluteFile.parentFile
        if (conditions.obstacle(place) == Obstacle.LOW_DISK) throw lowDisk(place)
        TrainingSession.open(request.bundle, cache = cache).use { session ->
            Dataset().use { dataset ->
                dataset.read(request.data, request.bundle, session.run.loss)
                // Only now: data that cannot be used must not leave a state behind. The screen said which data and how many
                // steps: other ones than before are meant, and the state keeps what changed.
                session.attach(request.state, changeSettings = true)
                while (session.info.steps < request.steps) {
                    takeSteps(session, dataset, request.steps, place)
                }
                emit(RunState.Done(session.info.steps))
            }
        }
    }.flowOn(dispatcher)

    /** Steps until all are taken or something is in the way, and then waits until it has passed. */
    private suspend fun FlowCollector<RunState>.takeSteps(
        session: TrainingSession,
        dataset: Dataset,
        steps: Long,
        place: File,
    ) {
        var obstacle = conditions.obstacle(place)
        if (obstacle == null) {
            // Ending the flow ends the training after the step that runs, saved.
            emitAll(
                session.progress(dataset, steps, dispatcher).transformWhile {
                    emit(RunState.Running(it))
                    obstacle = conditions.obstacle(place)
                    obstacle == null
                },
            )
        }
        val found = obstacle ?: return
        if (found == Obstacle.LOW_DISK) throw lowDisk(place)
        emit(RunState.Paused(found))
        while (!conditions.passed(found, place)) delay(poll)
    }

    private fun lowDisk(place: File) =
        LowDisk(place.path, conditions.freeBytes(place), conditions.limits.leastFreeBytes)
}
