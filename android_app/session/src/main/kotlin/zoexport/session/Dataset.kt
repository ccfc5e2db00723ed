package zoexport.session

import java.io.File

/** `labels[t]` is the token that follows `tokens[t]`, or -100 where nothing is predicted. */
class Candidate(val tokens: LongArray, val labels: LongArray)

/** Tokenized examples, held by the session's library. */
class Dataset : AutoCloseable {
    internal val handle: Handle

    init {
        Library.load()
        handle = Handle(nativeNew(), "dataset", ::nativeFree)
    }

    /** The number of examples. */
    val size: Long get() = handle.call(::nativeSize)

    /**
     * Appends an example. [candidates] are the completions to compare, one where there are no choices; [target] is the
     * index of the right one.
     *
     * @throws ZoException.Data no label, unequal lengths, an impossible token or target; nothing is appended.
     */
    fun add(candidates: List<Candidate>, target: Int = 0) = handle.call { address ->
        for (candidate in candidates) {
            if (candidate.tokens.size != candidate.labels.size) {
                throw ZoException.Data(
                    "example ${nativeSize(address)}",
                    "${candidate.tokens.size} tokens and ${candidate.labels.size} labels",
                    "as many labels as tokens",
                    "Give -100 where nothing is to be predicted.",
                )
            }
        }
        nativeAdd(
            address, Array(candidates.size) { candidates[it].tokens },
            Array(candidates.size) { candidates[it].labels }, target.toLong().notNegative("target"),
        )
    }

    /** Appends the examples of a JSON Lines file (docs/session.md). On failure nothing is appended. */
    fun load(file: File) = handle.call { nativeLoad(it, file.path.checked("examples")) }

    /**
     * Appends the examples of a data file as people write them (docs/cli.md, "Data"), tokenized for [bundle], whose
     * tokenizer is open only meanwhile. On failure nothing is appended.
     *
     * @param loss of the run: every example must have what it compares, with [Loss.CHOICES] choices, with [Loss.DPO] and
     *   [Loss.ORPO] a pair.
     * @param pack of the run: what is compared with nothing fills rows, long texts are divided (docs/packing.md).
     * @param trustedKeys as [TrainingSession.open] takes them.
     * @return how many were shortened to the bundle's rows.
     * @throws ZoException.Data the file, or a line of it, cannot be used.
     * @throws ZoException.Bundle it has no tokenizer, or one of a kind that is not known.
     */
    fun read(
        data: File,
        bundle: File,
        loss: Loss = Loss.FULL,
        pack: Boolean = false,
        trustedKeys: List<String>? = null,
    ): Long = handle.call {
        nativeRead(
            it, bundle.path.checked("bundle"), data.path.checked("data"), loss.ordinal, pack,
            trustedKeys?.joinToString("\n")?.checked("trustedKeys"),
        )
    }

    /** SHA-256 of all examples in their order, in hexadecimal. */
    val digest: String get() = handle.call(::nativeDigest)

    override fun close() = handle.close()

    private companion object {
        @JvmStatic private external fun nativeNew(): Long
        @JvmStatic private external fun nativeFree(dataset: Long)
        @JvmStatic private external fun nativeSize(dataset: Long): Long
        @JvmStatic private external fun nativeLoad(dataset: Long, path: String)
        @JvmStatic private external fun nativeDigest(dataset: Long): String

        @JvmStatic
        private external fun nativeRead(
            dataset: Long, bundle: String, data: String, loss: Int, pack: Boolean, keys: String?,
        ): Long

        @JvmStatic
        private external fun nativeAdd(dataset: Long, tokens: Array<LongArray>, labels: Array<LongArray>, target: Long)
    }
}
