package zoexport.session

import java.io.File
import org.json.JSONObject

/** One completion: `labels[t]` is the token that follows `tokens[t]`, or -100 if nothing is predicted there. */
class Candidate(val tokens: LongArray, val labels: LongArray)

/** Describes a data file: its examples, those that exceed the bundle's rows, the longest in tokens, and notes to show. */
class ReadReport internal constructor(json: JSONObject) {
    val examples: Long = json.getLong("examples")
    val shortened: Long = json.getLong("shortened")
    val longest: Long = json.getLong("longest")
    val note: String = json.getString("note")
}

/** Holds tokenized examples in the session's library. */
class Dataset : AutoCloseable {
    internal val handle = Handle(Native.newDataset(), "dataset", Native::freeDataset)

    /** The number of examples. */
    val size: Long get() = handle.call(Native::datasetSize)

    /** The SHA-256 of all examples in their order, in hexadecimal. */
    val digest: String get() = handle.call(Native::digest)

    /** Appends an example, with one candidate unless there are choices; [target] is the index of the right one. */
    fun add(candidates: List<Candidate>, target: Int = 0) = handle.call { dataset ->
        candidates.firstOrNull { it.tokens.size != it.labels.size }?.let {
            throw ZoException.Data(
                "example ${Native.datasetSize(dataset)}", "${it.tokens.size} tokens and ${it.labels.size} labels",
                "as many labels as tokens", "Give -100 where nothing is to be predicted.",
            )
        }
        val (tokens, labels) = listOf(Candidate::tokens, Candidate::labels)
            .map { part -> candidates.flatMap { part(it).asList() }.toLongArray() }
        val lengths = candidates.map { it.tokens.size.toLong() }.toLongArray()
        Native.addExample(dataset, lengths, tokens, labels, target.toLong().notNegative("target"))
    }

    /** Appends the examples of a JSON Lines file of tokens (docs/session.md). Appends nothing on failure. */
    fun load(file: File) = handle.call { Native.load(it, file.path) }

    /**
     * Appends the examples of a data file (docs/cli.md, "Data"), tokenized for [bundle]. Appends nothing on failure.
     *
     * @param settings `loss` and `pack` of the run: a loss of choices or pairs needs examples that have them.
     * @param onPart receives the bytes read and their total; true ends it.
     * @throws ZoException.Data if the file or one of its lines cannot be used.
     */
    fun read(
        data: File, bundle: File, settings: Map<String, Any> = emptyMap(), trustedKeys: List<String>? = null,
        onPart: OnPart = { _, _ -> false },
    ): ReadReport = handle.call {
        val tokenizer = Native.openTokenizer(bundle.path, options("trusted_keys" to trustedKeys))
        try {
            ReadReport(JSONObject(Native.read(it, tokenizer, data.path, json(settings), Listener(onPart))))
        } finally {
            Native.closeTokenizer(tokenizer)
        }
    }

    override fun close() = handle.close()
}

/** Checks a count or index, which the library takes without a sign. */
internal fun Long.notNegative(where: String): Long {
    if (this >= 0) return this
    throw ZoException.InvalidArgument(where, toString(), "a number of at least 0", "Choose another one.")
}
