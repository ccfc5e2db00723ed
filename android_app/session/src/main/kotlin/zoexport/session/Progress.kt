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
 * Returns [TrainingSession.train] as a cold flow: collecting it trains in a thread of [dispatcher], and emits every step.
 *
 * Cancelling the collector ends the run: the current step is finished and saved before the collector's scope completes.
 * Failures come out of `collect`. A slow collector does not delay training.
 */
fun TrainingSession.progress(
    dataset: Dataset, totalSteps: Long, dispatcher: CoroutineDispatcher = Dispatchers.IO,
): Flow<StepProgress> = callbackFlow {
    launch(dispatcher) {
        try {
            train(dataset, totalSteps) {
                trySend(it)
                !isActive
            }
            close()
        } catch (error: ZoException) {
            close(error)
        }
    }
    awaitClose() // the callback notices the cancellation after the current step
}.buffer(Channel.UNLIMITED)
