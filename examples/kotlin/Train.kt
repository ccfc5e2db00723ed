// Train a bundle in Kotlin, on Android or a JVM, complete a prompt, and write the adapter for PEFT.
// Arguments: bundle, data, state, steps, prompt, adapter. In an app, run this in a thread of its own.

import java.io.File
import zoexport.session.Dataset
import zoexport.session.GenerateOptions
import zoexport.session.TrainingSession

object Train {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val (bundle, data, state) = arguments.take(3).map(::File)
        val (steps, prompt, adapter) = arguments.drop(3)
        TrainingSession.open(bundle).use { session ->
            Dataset().use { dataset ->
                dataset.read(data, bundle)
                session.attach(state) // creates the state, or resumes it
                session.train(dataset, steps.toLong()) { progress ->
                    println("step ${progress.step} of ${progress.total}: loss ${progress.loss}")
                    false // true stops the run and saves it
                }
            }
            println(session.generate(prompt, GenerateOptions(maxNewTokens = 16)).text)
            session.exportAdapter(File(adapter))
        }
    }
}
