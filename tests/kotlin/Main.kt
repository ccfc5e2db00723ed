// Runs all tests.
// Arguments: the folder of hosts.make_case, that of trajectories.make_case, that of text_cases.make_case, that of
// generation_cases.make_case, that of life_cases.make_case, a bundle for android-gpu, an empty folder, graphs/golden.

import java.io.File
import kotlin.system.exitProcess

/** A float's eight digits. */
fun bits(value: Float): String = value.toRawBits().toUInt().toString(16).padStart(8, '0')

fun bits(values: FloatArray): List<String> = values.map(::bits)

fun main(arguments: Array<String>) {
    val (case, trajectories, texts, generations, life) = arguments.map(::File)
    val (gpuBundle, output, golden) = arguments.drop(5).map(::File)
    val file = Json.parse(golden.resolve("trajectories.json").readText())
    val tests = SmokeTest(case, output, Json.parse(golden.resolve("rng.json").readText())).tests() +
        TrajectoryTest(trajectories, file).tests() +
        SlotTest(trajectories, file).tests() +
        GenerateTest(generations).tests() +
        ProgressTest(trajectories, output.resolve("progress")).tests() +
        RecordTest(trajectories.resolve("prge/bundle"), texts, output.resolve("records")).tests() +
        ModelTest(trajectories, texts, gpuBundle, output.resolve("model")).tests() +
        LifeTest(life, output.resolve("life")).tests()
    val failed = tests.count { (name, body) ->
        val failure = runCatching { body() }.exceptionOrNull()
        println(if (failure == null) "ok: $name" else "FAILED: $name\n${failure.stackTraceToString()}")
        failure != null
    }
    println("${tests.size - failed} passed, $failed failed")
    exitProcess(if (failed == 0) 0 else 1)
}
