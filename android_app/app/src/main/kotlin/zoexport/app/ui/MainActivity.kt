package zoexport.app.ui

import android.Manifest
import android.app.Activity
import android.app.AlertDialog
import android.content.Intent
import android.net.Uri
import android.os.Build
import android.os.Bundle
import android.provider.OpenableColumns
import android.text.InputType
import android.view.View
import android.view.ViewGroup
import android.view.WindowInsets
import android.widget.ArrayAdapter
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ScrollView
import android.widget.Spinner
import android.widget.TextView
import android.widget.Toast
import java.io.File
import java.io.IOException
import kotlin.concurrent.thread
import zoexport.app.R
import zoexport.app.ZoApplication
import zoexport.app.training.AdapterFile
import zoexport.app.training.Exchange
import zoexport.app.training.Screen
import zoexport.session.Answer
import zoexport.session.Typed
import zoexport.session.ZoException

/** Shows the only screen: the choices for a run, its buttons, its progress, and answers of the model before and after. */
class MainActivity : Activity() {
    private val app get() = application as ZoApplication
    private val model get() = app.model
    private var listening: AutoCloseable? = null
    private var asked: String? = null
    private var asking = false

    private val column by lazy { LinearLayout(this).apply { orientation = LinearLayout.VERTICAL } }
    private val bundles by lazy { Spinner(this).apply { contentDescription = getString(R.string.bundle) } }
    private val data by lazy { label("") }
    private val heldOut by lazy { label("") }
    private val prompt by lazy { field(R.string.prompt) }
    private val completion by lazy { field(R.string.completion) }
    private val system by lazy { field(R.string.system) }
    private val turns by lazy { label("") }
    private val steps by lazy { field(R.string.steps, InputType.TYPE_CLASS_NUMBER) }
    private val rate by lazy { field(R.string.rate, InputType.TYPE_CLASS_NUMBER or InputType.TYPE_NUMBER_FLAG_DECIMAL) }
    private val state by lazy { label("").apply { accessibilityLiveRegion = View.ACCESSIBILITY_LIVE_REGION_POLITE } }
    private val chart by lazy { LossChart(this) }
    private val details by lazy { label("") }
    private val question by lazy { field(R.string.question) }
    private val answers by lazy { label("") }

    /** Buttons that are shown by the screen alone. */
    private val shown = ArrayList<Pair<Button, (Screen) -> Boolean>>()

    /** The others, which work unless a run is active. */
    private val idle = ArrayList<Button>()

    override fun onCreate(saved: Bundle?) {
        super.onCreate(saved)
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.TIRAMISU) {
            requestPermissions(arrayOf(Manifest.permission.POST_NOTIFICATIONS), 0)
        }
        section(R.string.bundle, bundles)
        button(R.string.bundle_import) { pick(BUNDLE) }
        section(R.string.data, label(getString(R.string.data_note)), data)
        button(R.string.data_choose) { pick(DATA) }
        column.addView(heldOut)
        button(R.string.held_out_choose) { pick(HELD_OUT) }
        button(R.string.held_out_leave, { it.heldOut != null && !it.isActive }) { model.choose(heldOut = null) }
        section(R.string.typed_title, prompt, completion)
        button(R.string.add) { typed { first, second -> model.type(Typed(first, second)) } }
        section(R.string.chat_title, system, turns)
        button(R.string.add_turn) {
            typed { first, second -> model.typeTurn(first, second, system.text.toString()) }
        }
        button(R.string.add_chat, { model.typedTurns.isNotEmpty() && !it.isActive }) { guarded(model::typeChat) }
        section(R.string.training, steps, rate)
        button(R.string.start) { start(Answer.ASK, false) }
        button(R.string.start_charging) { start(Answer.ASK, true) }
        button(R.string.resume, { it.canResume }) { model.resume() }
        button(R.string.pause, { it.isActive }) { model.pause() }
        button(R.string.cancel, { it.isActive }) { model.cancel() }
        column.addView(state)
        column.addView(chart, ViewGroup.LayoutParams.MATCH_PARENT, (160 * resources.displayMetrics.density).toInt())
        column.addView(details)
        section(R.string.try_it, question)
        button(R.string.ask, action = ::ask)
        button(R.string.hush, action = model::hush)
        column.addView(answers)
        section(R.string.result, label(getString(R.string.share_note)))
        button(R.string.share_peft) { share(AdapterFile.PEFT) }
        button(R.string.share_gguf) { share(AdapterFile.GGUF) }
        button(R.string.discard, action = ::discard)
        setContentView(ScrollView(this).apply { addView(column) })
        column.setOnApplyWindowInsetsListener { view, insets ->
            val room = insets.getInsets(WindowInsets.Type.systemBars() or WindowInsets.Type.ime())
            view.setPadding(room.left + MARGIN, room.top + MARGIN, room.right + MARGIN, room.bottom + MARGIN)
            insets
        }
        val screen = model.screen
        steps.setText(screen.steps.toString())
        screen.learningRate?.let { rate.setText(it.toString()) }
    }

    override fun onStart() {
        super.onStart()
        listening = model.listen { runOnUiThread(::show) }
        show()
    }

    override fun onStop() {
        super.onStop()
        listening?.close()
    }

    @Deprecated("Deprecated in Java")
    override fun onActivityResult(request: Int, result: Int, given: Intent?) {
        val picked = given?.data
        if (result != RESULT_OK || picked == null) return
        if (request == BUNDLE) import(picked) else take(picked, isHeldOut = request == HELD_OUT)
    }

    private fun show() {
        val screen = model.screen
        data.text = screen.data?.name ?: getString(R.string.data_missing)
        state.text = listOfNotNull(title(screen.view), screen.problem, screen.view.notice.ifEmpty { null }).joinToString("\n")
        heldOut.text = getString(R.string.held_out, screen.heldOut?.name ?: getString(R.string.data_missing))
        chart.show(screen.losses, screen.view.evaluations)
        details.text = numbers(screen.view)
        turns.text = model.typedTurns.joinToString("\n") { "${it.role}: ${it.content}" }
        if (!asking) show(model.talk)
        if (bundles.tag != model.bundles) listBundles() // one was imported
        idle.forEach { it.isEnabled = !screen.isActive }
        shown.forEach { (button, isShown) -> button.visibility = if (isShown(screen)) View.VISIBLE else View.GONE }
        if (screen.question != asked) {
            asked = screen.question
            screen.question?.let(::askWhich)
        }
    }

    private fun listBundles() {
        val there = model.bundles
        val names = there.map { it.name }.ifEmpty { listOf(getString(R.string.bundle_missing)) }
        bundles.adapter = ArrayAdapter(this, android.R.layout.simple_spinner_dropdown_item, names)
        model.screen.bundle?.let { bundles.setSelection(there.indexOf(it).coerceAtLeast(0)) }
        bundles.tag = there
    }

    private fun chosenBundle(): File? = (bundles.tag as List<*>).getOrNull(bundles.selectedItemPosition) as File?

    private fun start(answer: Answer, whenCharging: Boolean) {
        model.choose(
            bundle = chosenBundle(),
            steps = steps.text.toString().toLongOrNull() ?: 0,
            learningRate = rate.text.toString().toDoubleOrNull(),
        )
        thread { model.start(answer, whenCharging) }
    }

    /** Asks the user what to do with a state that has steps of something else. */
    private fun askWhich(message: String) {
        AlertDialog.Builder(this)
            .setMessage(message)
            .setPositiveButton(R.string.go_on) { _, _ -> start(Answer.CONTINUE, false) }
            .setNegativeButton(R.string.anew) { _, _ -> start(Answer.RESTART, false) }
            .setNeutralButton(R.string.cancel, null)
            .show()
    }

    private fun typed(take: (String, String) -> Unit) {
        if (completion.text.isEmpty()) return
        guarded { take(prompt.text.toString(), completion.text.toString()) }
        prompt.setText("")
        completion.setText("")
    }

    @Suppress("DEPRECATION") // its replacement belongs to AndroidX
    private fun pick(request: Int) {
        val intent = Intent(Intent.ACTION_OPEN_DOCUMENT).setType("*/*").addCategory(Intent.CATEGORY_OPENABLE)
        startActivityForResult(intent, request)
    }

    /** The document is copied: a run outlives the permission to read it. */
    private fun take(document: Uri, isHeldOut: Boolean) = thread {
        val copy = File(filesDir, if (isHeldOut) "held-out.jsonl" else "data.jsonl")
        guarded {
            contentResolver.openInputStream(document)?.use { input -> copy.outputStream().use { input.copyTo(it) } }
            if (isHeldOut) model.choose(heldOut = copy) else model.choose(data = copy)
        }
    }

    /** Read where it lies, by its descriptor: a copy would take its room twice. */
    private fun import(document: Uri) = thread {
        guarded {
            val columns = arrayOf(OpenableColumns.DISPLAY_NAME)
            val name = contentResolver.query(document, columns, null, null, null)?.use {
                if (it.moveToFirst()) it.getString(0) else null
            }
            contentResolver.openFileDescriptor(document, "r")?.use { file ->
                model.importBundle(File("/proc/self/fd/${file.fd}"), name ?: "bundle") { done, total ->
                    runOnUiThread { data.text = getString(R.string.importing, 100 * done / total.coerceAtLeast(1)) }
                    isDestroyed
                }
            }
        }
        runOnUiThread(::show)
    }

    private fun ask() {
        val text = question.text.toString()
        if (asking || text.isEmpty()) return
        asking = true
        question.setText("")
        val before = model.talk
        val said = mapOf(true to StringBuilder(), false to StringBuilder())
        thread {
            guarded {
                model.ask(text) { trained, piece ->
                    said.getValue(trained).append(piece)
                    val now = Exchange(text, said[true].toString(), said[false].toString())
                    runOnUiThread { show(before + now) }
                    isDestroyed
                }
            }
            runOnUiThread {
                asking = false
                show()
            }
        }
    }

    private fun show(talk: List<Exchange>) {
        answers.text = talk.joinToString("\n\n") { getString(R.string.exchange, it.question, it.trained, it.untrained) }
    }

    private fun share(kind: AdapterFile) = thread {
        guarded {
            val file = model.writeAdapter(kind, File(cacheDir, "adapters"))
            val send = Intent(Intent.ACTION_SEND)
                .setType(kind.mime)
                .putExtra(Intent.EXTRA_STREAM, SharedFiles.uriOf(this, file))
                .addFlags(Intent.FLAG_GRANT_READ_URI_PERMISSION)
            startActivity(Intent.createChooser(send, null))
        }
    }.let {}

    private fun discard() {
        AlertDialog.Builder(this)
            .setMessage(R.string.discard_sure)
            .setPositiveButton(R.string.discard) { _, _ -> guarded { model.discard() } }
            .setNegativeButton(R.string.cancel, null)
            .show()
    }

    /** A failure is one message. */
    private fun guarded(action: () -> Unit) {
        try {
            action()
        } catch (error: Exception) {
            if (error !is ZoException && error !is IOException) throw error
            runOnUiThread { Toast.makeText(this, error.message, Toast.LENGTH_LONG).show() }
        }
    }

    private fun label(text: String) = TextView(this).apply { this.text = text }

    private fun field(hint: Int, type: Int = InputType.TYPE_CLASS_TEXT or InputType.TYPE_TEXT_FLAG_MULTI_LINE) =
        EditText(this).apply {
            setHint(hint)
            inputType = type
        }

    private fun section(title: Int, vararg views: View) {
        val heading = label(getString(title))
        heading.setTextAppearance(android.R.style.TextAppearance_DeviceDefault_Medium)
        heading.isAccessibilityHeading = true
        column.addView(heading)
        views.forEach(column::addView)
    }

    private fun button(text: Int, isShown: ((Screen) -> Boolean)? = null, action: () -> Unit) {
        val button = Button(this)
        button.setText(text)
        button.setOnClickListener { action() }
        if (isShown == null) idle.add(button) else shown.add(button to isShown)
        column.addView(button)
    }

    private companion object {
        const val DATA = 1
        const val BUNDLE = 2
        const val HELD_OUT = 3
        const val MARGIN = 32
    }
}
