// A process to be killed: trains a state and says each step.
// Arguments: bundle, examples, state, steps.

import java.io.File
import zoexport.session.Dataset
import zoexport.session.TrainingSession

object TrainOnce {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val (bundle, examples, state) = arguments.take(3).map(::File)
        Dataset().use { dataset ->
            dataset.load(examples)
            TrainingSession.open(bundle).use { session ->
                session.attach(state)
                session.train(dataset, arguments[3].toLong()) { progress ->
                    println(progress.step)
                    false
                }
            }
        }
    }
}
