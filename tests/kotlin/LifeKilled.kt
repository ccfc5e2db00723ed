// A process to be killed: imports the signed bundle and trains (LifeTest).
// Arguments: the folder of life_cases.make_case, an empty folder.

import java.io.File

object LifeKilled {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val (case, output) = arguments.map(::File)
        LifeTest(case, output).importTrainAndBeKilled()
    }
}
