package zoexport.app.ui

import android.content.ContentProvider
import android.content.ContentValues
import android.content.Context
import android.database.Cursor
import android.database.MatrixCursor
import android.net.Uri
import android.os.ParcelFileDescriptor
import android.provider.OpenableColumns
import java.io.File
import java.io.FileNotFoundException
import zoexport.app.training.AdapterFile

/** Lets the app that a file was shared with read it: files of the cache's folder "adapters", and nothing else. */
class SharedFiles : ContentProvider() {
    override fun onCreate(): Boolean = true

    override fun openFile(uri: Uri, mode: String): ParcelFileDescriptor =
        ParcelFileDescriptor.open(fileOf(uri), ParcelFileDescriptor.MODE_READ_ONLY)

    override fun query(
        uri: Uri,
        projection: Array<out String>?,
        selection: String?,
        arguments: Array<out String>?,
        order: String?,
    ): Cursor = MatrixCursor(arrayOf(OpenableColumns.DISPLAY_NAME, OpenableColumns.SIZE)).apply {
        val file = fileOf(uri)
        addRow(arrayOf<Any>(file.name, file.length()))
    }

    override fun getType(uri: Uri): String? = AdapterFile.entries.find { it.fileName == uri.lastPathSegment }?.mime

    override fun insert(uri: Uri, values: ContentValues?): Uri? = null

    override fun delete(uri: Uri, selection: String?, arguments: Array<out String>?): Int = 0

    override fun update(uri: Uri, values: ContentValues?, selection: String?, arguments: Array<out String>?): Int = 0

    /** By its name alone: a path would lead out of the folder. */
    private fun fileOf(uri: Uri): File {
        val name = uri.lastPathSegment.orEmpty()
        val file = File(checkNotNull(context).cacheDir, "adapters").resolve(File(name).name)
        if (!file.isFile) throw FileNotFoundException(name)
        return file
    }

    companion object {
        fun uriOf(context: Context, file: File): Uri =
            Uri.Builder().scheme("content").authority("${context.packageName}.files").appendPath(file.name).build()
    }
}
