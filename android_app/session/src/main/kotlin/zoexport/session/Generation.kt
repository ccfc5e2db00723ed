package zoexport.session

import org.json.JSONObject

/** One turn of a conversation; [role] is "system", "user" or "assistant". */
class Message(val role: String, val content: String) {
    internal val json get() = mapOf("role" to role, "content" to content)
}

/**
 * Controls generation: options of the kind `generate` (graphs/schema/settings.schema.json, docs/generate.md). By default it
 * uses the trained weights, and the most likely token each time.
 */
data class GenerateOptions(
    val maxTokens: Int = 256, val stop: List<String> = emptyList(), val adapter: String? = null,
    val untrained: Boolean = false, val temperature: Double = 0.0, val topK: Int = 0, val topP: Double = 1.0,
    val minP: Double = 0.0, val repetitionPenalty: Double = 1.0, val seed: ULong = 0u, val keep: Boolean = false,
    val sliding: Boolean = false,
) {
    internal fun json(prompt: Pair<String, Any>) = options(
        prompt, "max_tokens" to maxTokens, "stop" to stop, "adapter" to adapter, "untrained" to untrained,
        "temperature" to temperature, "top_k" to topK, "top_p" to topP, "min_p" to minP,
        "repetition_penalty" to repetitionPenalty, "seed" to seed, "keep" to keep, "sliding" to sliding,
    )
}

/** Says why generation ended. */
enum class Stop { EOS, LENGTH, CALLER, STRING }

/** Holds a generated text, which ends before a stop string; [tokens] include that string, but no stop token. */
class Generation internal constructor(json: JSONObject, val tokens: LongArray) {
    val text: String = json.getString("text")
    val stop: Stop = json.entry("stop")
    val promptTokens: Long = json.getLong("prompt_tokens")
    val keptTokens: Long = json.getLong("kept_tokens")
    val prefillSeconds: Double = json.getDouble("prefill_seconds")
    val decodeSeconds: Double = json.getDouble("decode_seconds")
    val anonymousBytes: Long = json.getLong("anonymous_bytes")
}
