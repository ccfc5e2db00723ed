package zoexport.session

import java.io.File
import org.json.JSONObject

/** One completion: `labels[t]` is the token that follows `tokens[t]`, or -100 if nothing is predicted there. */
class Candidate(val tokens: LongArray, val labels: LongArray)

/** Describes a data file: its examples, those that exceed the bundle's rows, the longest in tokens, and notes to show. */
class ReadReport internal constructor(
    json: JSONObject, val examples: Long = json.of("examples"), val shortened: Long = json.of("shortened"),
    val longest: Long = json.of("longest"), val note: String = json.of("note"),
)

/** Holds tokenized examples in the session's library. What cannot be used is a [ZoException.Data], and appends nothing. */
class Dataset : AutoCloseable {
    internal val handle = Handle(Native.newDataset(), "dataset", Native::freeDataset)

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
        Native.addExample(dataset, lengths, tokens, labels, target.toLong())
    }

    /** Appends the examples of a JSON Lines file of tokens (docs/formats.md). */
    fun load(file: File) = handle.call { Native.load(it, file.path) }

    /**
     * Appends the examples of a data file (docs/formats.md, "Training data"), tokenized for [bundle]. Of the run's [settings], `loss` and
     * `pack` change how a file is read. [onPart] gets bytes.
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

/** Writes a bundle in one file, which `zoexport pack` makes, to a folder, completely or not at all (`zo_bundle_unpack`). */
object PackedBundle {
    fun unpack(
        file: File, folder: File, replace: Boolean = false, trustedKeys: List<String>? = null,
        onUnpacked: OnPart = { _, _ -> false },
    ) = Native.unpack(
        file.path, folder.path, options("replace" to replace, "trusted_keys" to trustedKeys), Listener(onUnpacked),
    )
}

/** Names the engines that a bundle has programs for: its [own], and [fallback], the CPU's, if a GPU bundle has some. */
class BundleEngines private constructor(val own: String, val fallback: String?) {
    companion object {
        /** Reads the manifest alone: it also works for a bundle that cannot be opened for lack of a GPU. */
        fun of(bundle: File, trustedKeys: List<String>? = null): BundleEngines {
            val manifest = parsed(Native.manifest(bundle.path, options("trusted_keys" to trustedKeys)))
            return BundleEngines(manifest.getString("engine"), manifest.optJSONObject("fallback")?.getString("engine"))
        }
    }
}

/** Computes the noise specification (docs/noise.md, `zo_rng_words` and others). Unsigned numbers pass by their bits. */
object Noise {
    fun words(seed: Long, block: Int, tensorId: Int, query: Int, step: Int): List<UInt> =
        Native.words(seed, block, tensorId, query, step).map { it.toUInt() }

    fun normals(seed: Long, tensorId: Int, query: Int, step: Int, first: Long, count: Int): FloatArray =
        Native.noise(false, seed, tensorId, query, step, first, count).floats(0)

    fun signs(seed: Long, tensorId: Int, query: Int, step: Int, first: Long, count: Int): FloatArray =
        Native.noise(true, seed, tensorId, query, step, first, count).floats(0)

    fun permutation(seed: Long, epoch: Int, count: Int): List<Int> =
        Native.permutation(seed, epoch, count).map { it.toInt() }
}
