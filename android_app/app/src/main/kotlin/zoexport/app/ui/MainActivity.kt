package zoexport.app.ui

import android.Manifest
import android.content.Intent
import android.net.Uri
import android.os.Build
import android.os.Bundle
import android.widget.Toast
import androidx.activity.ComponentActivity
import androidx.activity.compose.setContent
import androidx.activity.result.contract.ActivityResultContracts
import androidx.compose.material3.MaterialTheme
import androidx.compose.runtime.getValue
import androidx.core.content.FileProvider
import androidx.lifecycle.compose.collectAsStateWithLifecycle
import androidx.lifecycle.lifecycleScope
import java.io.File
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import zoexport.app.ZoApplication
import zoexport.session.ZoException

class MainActivity : ComponentActivity() {
    private val app get() = application as ZoApplication
    private val chooseData = registerForActivityResult(ActivityResultContracts.OpenDocument()) { it?.let(::take) }
    private val askToNotify = registerForActivityResult(ActivityResultContracts.RequestPermission()) {}

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.TIRAMISU) {
            askToNotify.launch(Manifest.permission.POST_NOTIFICATIONS)
        }
        setContent {
            val screen by app.model.screen.collectAsStateWithLifecycle()
            MaterialTheme {
                TrainingScreen(
                    screen,
                    app.model,
                    app.bundles,
                    onChooseData = { chooseData.launch(arrayOf("*/*")) },
                    onShare = ::share,
                )
            }
        }
    }

    /** The document is copied: a run outlives the permission to read it. */
    private fun take(document: Uri) {
        lifecycleScope.launch(Dispatchers.IO) {
            val copy = File(filesDir, "data.jsonl")
            contentResolver.openInputStream(document)?.use { input -> copy.outputStream().use(input::copyTo) }
            app.model.chooseData(copy)
        }
    }

    private fun share() {
        lifecycleScope.launch {
            val file = File(cacheDir, "adapters/adapter.zip")
            try {
                withContext(Dispatchers.IO) { app.model.writeAdapter(file) }
            } catch (error: ZoException) {
                Toast.makeText(this@MainActivity, error.message, Toast.LENGTH_LONG).show()
                return@launch
            }
            val uri = FileProvider.getUriForFile(this@MainActivity, "$packageName.files", file)
            val send = Intent(Intent.ACTION_SEND)
                .setType("application/zip")
                .putExtra(Intent.EXTRA_STREAM, uri)
                .addFlags(Intent.FLAG_GRANT_READ_URI_PERMISSION)
            startActivity(Intent.createChooser(send, null))
        }
    }
}
