package zoexport.session

import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.callbackFlow
import kotlinx.coroutines.isActive
import kotlinx.coroutines.launch

/**
 * [TrainingSession.train] as a cold flow: collecting trains, and gives every step.
 *
 * It completes when the run has [totalSteps] steps. Cancelling the collector ends the run: the step that runs is finished
 * and saved before the collector's scope completes, so that the session can be closed or trained again after that.
 * Failures, and [ZoException.Cancelled] where [TrainingSession.cancel] was called, come out of `collect`. A collector that
 * is slow does not hold up the training.
 *
 * @param dispatcher whose thread trains.
 */
fun TrainingSession.progress(
    dataset: Dataset,
    totalSteps: Long,
    dispatcher: CoroutineDispatcher = Dispatchers.IO,
): Flow<StepProgress> = callbackFlow {
    launch(dispatcher) {
        try {
            train(dataset, totalSteps) { progress ->
                trySend(progress)
                !isActive
            }
            close()
        } catch (error: ZoException) {
            close(error)
        }
    }
    // The callback sees the cancellation after the step that runs.
    awaitClose()
}.buffer(Channel.UNLIMITED)
