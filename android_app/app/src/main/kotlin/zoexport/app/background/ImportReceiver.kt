package zoexport.app.background

import android.app.Activity
import android.content.BroadcastReceiver
import android.content.Context
import android.content.Intent
import java.io.File
import kotlin.concurrent.thread
import zoexport.app.ZoApplication

/** Imports the packed bundle that `zoexport device push --app` brought, and answers with the result (docs/android.md). */
class ImportReceiver : BroadcastReceiver() {
    override fun onReceive(context: Context, intent: Intent) {
        val file = File(intent.getStringExtra("file").orEmpty())
        val model = (context.applicationContext as ZoApplication).model
        val answer = goAsync()
        thread(name = "import") {
            val (imported, said) = model.importPushed(file)
            answer.setResult(if (imported) Activity.RESULT_OK else Activity.RESULT_FIRST_USER, said, null)
            answer.finish()
        }
    }
}
