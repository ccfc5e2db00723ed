package zoexport.app

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer
import java.io.File
import zoexport.app.training.BundleFacts
import zoexport.app.training.Tokenizer
import zoexport.session.ZoException

/** The tokenizer of a bundle's tokenizer.json, by Hugging Face's own library in DJL's binding. */
class HuggingFaceTokens(bundle: File) : Tokenizer {
    private val tokenizer = try {
        // What it would do by its own defaults is ours to do: texts are neither cut nor padded.
        HuggingFaceTokenizer.builder()
            .optTokenizerPath(bundle.resolve(BundleFacts.TOKENIZER).toPath())
            .optTruncation(false)
            .optPadding(false)
            .build()
    } catch (error: Exception) { // the binding passes on whatever its native code says
        throw ZoException.Bundle(
            "bundle ${bundle.name}", "a ${BundleFacts.TOKENIZER} that cannot be read (${error.message})",
            "a tokenizer as transformers saves it", "Compile the bundle again.",
        )
    }

    override fun encode(text: String, special: Boolean): LongArray =
        tokenizer.encode(text, special, false).ids

    override fun close() = tokenizer.close()
}
