package zoexport.app.training

import zoexport.session.Candidate
import zoexport.session.Dataset
import zoexport.session.ZoException

/** Turns text into the ids of the bundle's model. */
interface Tokenizer : AutoCloseable {
    /** @param special whether what the tokenizer adds by its own configuration (BOS, EOS) is added. */
    fun encode(text: String, special: Boolean): LongArray
}

private const val IGNORED = -100L

/**
 * Appends a file's records to a dataset, tokenized as `zoexport train` does (docs/cli.md): prompt and completion
 * separately, special tokens for the prompt alone; a text cut at its end, a prompt at its start.
 *
 * @param records of [readRecords].
 * @param bundle has the longest sequence and the vocabulary.
 * @param choices whether every example must have some, as the loss over choices needs.
 * @return how many examples were shortened.
 * @throws ZoException.Data an example cannot be used; it and what follows it are not appended.
 */
fun Dataset.add(records: List<Record>, tokenizer: Tokenizer, bundle: BundleFacts, choices: Boolean): Int {
    var shortened = 0
    for (record in records) {
        if (choices && (record !is Record.Completion || record.completions.size < 2)) {
            throw ZoException.Data(
                record.where, "no 'choices'", "'choices' in every example, since the loss is over an example's choices",
                "Add 'choices' to the example.",
            )
        }
        val sequences = when (record) {
            is Record.Text -> listOf(longArrayOf() to tokenizer.encode(record.text, special = true))
            is Record.Completion -> {
                val prompt = tokenizer.encode(record.prompt, special = true)
                record.completions.map { prompt to tokenizer.encode(it, special = false) }
            }
        }
        sequences.forEach { (prompt, completion) -> checkVocabulary(record, prompt + completion, bundle) }
        if (sequences.map { it.second.toList() }.toSet().size < sequences.size) {
            throw ZoException.Data(
                record.where, "choices that the tokenizer turns into the same tokens",
                "choices that differ in their tokens", "Choose other words for the choices.",
            )
        }
        val longest = sequences.maxOf { it.second.size }
        val room = maxOf(bundle.seqLen - longest, 0)
        val candidates = sequences.map { (prompt, completion) ->
            val kept = prompt.copyOfRange(maxOf(prompt.size - room, 0), prompt.size)
            val tokens = (kept + completion).let { it.copyOf(minOf(it.size, bundle.seqLen)) }
            candidate(tokens, kept.size, record)
        }
        if (sequences.zip(candidates).any { (whole, cut) -> cut.tokens.size < whole.first.size + whole.second.size }) {
            shortened++
        }
        add(candidates, if (record is Record.Completion) record.target else 0)
    }
    return shortened
}

private fun checkVocabulary(record: Record, tokens: LongArray, bundle: BundleFacts) {
    val beyond = tokens.firstOrNull { it < 0 || it >= bundle.vocabulary } ?: return
    throw ZoException.Data(
        record.where, "a token with id $beyond", "ids below the model's vocabulary size ${bundle.vocabulary}",
        "Use the tokenizer that belongs to the model, or remove that token from the text.",
    )
}

/** A label for each of `tokens[first:]`, at the position before it; the first token has none. */
private fun candidate(tokens: LongArray, first: Int, record: Record): Candidate {
    val start = maxOf(first, 1)
    val labels = LongArray(tokens.size) { at -> if (at + 1 in start until tokens.size) tokens[at + 1] else IGNORED }
    if (labels.all { it == IGNORED }) {
        throw ZoException.Data(
            record.where, "${tokens.size} tokens, none of which can be predicted",
            "at least one token to be learned that another token precedes", "Give a longer text, or a prompt.",
        )
    }
    return Candidate(tokens, labels)
}
