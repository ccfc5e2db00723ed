package zoexport.app.ui

import androidx.compose.foundation.layout.Arrangement
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.Row
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.height
import androidx.compose.foundation.layout.padding
import androidx.compose.foundation.layout.safeDrawingPadding
import androidx.compose.foundation.rememberScrollState
import androidx.compose.foundation.verticalScroll
import androidx.compose.material3.Button
import androidx.compose.material3.FilterChip
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.OutlinedButton
import androidx.compose.material3.OutlinedTextField
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableStateOf
import androidx.compose.runtime.remember
import androidx.compose.runtime.setValue
import androidx.compose.ui.Modifier
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.unit.dp
import java.io.File
import zoexport.app.R
import zoexport.app.training.Obstacle
import zoexport.app.training.RunState
import zoexport.app.training.Screen
import zoexport.app.training.TrainingModel
import zoexport.app.training.Typed

/** The app's one screen: what is trained, the run's buttons, and how it goes. */
@Composable
fun TrainingScreen(
    screen: Screen,
    model: TrainingModel,
    bundles: File,
    onChooseData: () -> Unit,
    onShare: () -> Unit,
) {
    Column(
        Modifier.safeDrawingPadding().padding(16.dp).verticalScroll(rememberScrollState()),
        verticalArrangement = Arrangement.spacedBy(12.dp),
    ) {
        Bundles(screen, bundles, model::chooseBundle)
        Examples(screen, onChooseData, model::type)
        OutlinedTextField(
            screen.steps.toString(),
            { text -> text.toLongOrNull()?.let(model::setSteps) },
            label = { Text(stringResource(R.string.steps)) },
            enabled = !screen.isActive,
        )
        Buttons(screen, model, onShare)
        Progress(screen)
    }
}

@Composable
private fun Bundles(screen: Screen, bundles: File, onChoose: (File) -> Unit) {
    Text(stringResource(R.string.bundle), style = MaterialTheme.typography.titleMedium)
    val there = remember { bundles.listFiles { file -> file.isDirectory }.orEmpty().sorted() }
    if (there.isEmpty()) Text(stringResource(R.string.bundle_missing))
    for (bundle in there) {
        val chosen = screen.bundle?.folder == bundle
        FilterChip(chosen, { onChoose(bundle) }, { Text(bundle.name) }, enabled = !screen.isActive)
    }
}

@Composable
private fun Examples(screen: Screen, onChooseData: () -> Unit, onType: (List<Typed>) -> Unit) {
    Text(stringResource(R.string.data), style = MaterialTheme.typography.titleMedium)
    var typed by remember { mutableStateOf(listOf<Typed>()) }
    var prompt by remember { mutableStateOf("") }
    var completion by remember { mutableStateOf("") }
    OutlinedButton(onChooseData, enabled = !screen.isActive) { Text(stringResource(R.string.data_choose)) }
    screen.data?.let { Text(it.name) }
    OutlinedTextField(
        prompt, { prompt = it }, Modifier.fillMaxWidth(), label = { Text(stringResource(R.string.prompt)) },
    )
    OutlinedTextField(
        completion, { completion = it }, Modifier.fillMaxWidth(), label = { Text(stringResource(R.string.completion)) },
    )
    Row(horizontalArrangement = Arrangement.spacedBy(8.dp)) {
        OutlinedButton(
            {
                typed = typed + Typed(prompt, completion)
                onType(typed)
                prompt = ""
                completion = ""
            },
            enabled = !screen.isActive && completion.isNotEmpty(),
        ) { Text(stringResource(R.string.add)) }
        if (typed.isNotEmpty()) Text(stringResource(R.string.typed, typed.size))
    }
}

@Composable
private fun Buttons(screen: Screen, model: TrainingModel, onShare: () -> Unit) {
    val paused = screen.run == RunState.Paused(null)
    if (screen.isActive) {
        Row(horizontalArrangement = Arrangement.spacedBy(8.dp)) {
            if (paused) {
                Button(model::resume) { Text(stringResource(R.string.resume)) }
            } else {
                Button(model::pause) { Text(stringResource(R.string.pause)) }
            }
            OutlinedButton(model::cancel) { Text(stringResource(R.string.cancel)) }
        }
    } else {
        Button({ model.start() }, enabled = screen.canStart) { Text(stringResource(R.string.start)) }
        OutlinedButton({ model.start(whenIdle = true) }, enabled = screen.canStart) {
            Text(stringResource(R.string.start_idle))
        }
        OutlinedButton(onShare, enabled = screen.bundle != null) { Text(stringResource(R.string.share)) }
        OutlinedButton(model::discard, enabled = screen.bundle != null) { Text(stringResource(R.string.discard)) }
    }
}

@Composable
private fun Progress(screen: Screen) {
    Text(described(screen.run), style = MaterialTheme.typography.titleMedium)
    if (screen.losses.isNotEmpty()) LossChart(screen.losses, Modifier.fillMaxWidth().height(200.dp))
    (screen.run as? RunState.Running)?.progress?.let {
        Text(stringResource(R.string.loss, it.loss))
        Text(stringResource(R.string.step_time, it.seconds))
        Text(stringResource(R.string.memory, it.anonymousBytes / 1_000_000))
    }
    screen.celsius?.let { Text(stringResource(R.string.temperature, it)) }
}

@Composable
private fun described(run: RunState): String = when (run) {
    RunState.Idle -> stringResource(R.string.state_idle)
    RunState.Preparing -> stringResource(R.string.state_preparing)
    is RunState.Running -> stringResource(R.string.state_running, run.progress.step, run.progress.total)
    is RunState.Paused -> stringResource(
        when (run.obstacle) {
            null -> R.string.state_paused
            Obstacle.TOO_HOT -> R.string.state_hot
            Obstacle.LOW_BATTERY -> R.string.state_battery
            Obstacle.LOW_DISK -> R.string.state_disk
        },
    )
    is RunState.Failed -> run.problem.message
    is RunState.Done -> stringResource(R.string.state_done, run.steps)
}
