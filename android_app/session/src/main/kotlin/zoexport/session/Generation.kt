package zoexport.session

// What a session that generates takes and returns.

/** A turn of a conversation; [role] is "system", "user" or "assistant". */
class Message(val role: String, val content: String)

/**
 * How to generate. As it stands, with what was trained, the most likely token each time.
 *
 * @property maxTokens that follow the prompt at most.
 * @property stop the text ends before the first of these.
 * @property adapter the name of one that [TrainingSession.loadAdapter] loaded, in place of what was trained.
 * @property untrained with the slots as the bundle has them.
 * @property temperature 0: the most likely token. [topK] 0: all tokens may follow. See docs/generate.md.
 * @property keep keeps the caches, so that a longer prompt that begins alike is read from there on.
 * @property sliding past the bundle's context goes on over the last part of the text.
 */
data class GenerateOptions(
    val maxTokens: Int = 256,
    val stop: List<String> = emptyList(),
    val adapter: String? = null,
    val untrained: Boolean = false,
    val temperature: Double = 0.0,
    val topK: Int = 0,
    val topP: Double = 1.0,
    val minP: Double = 0.0,
    val repetitionPenalty: Double = 1.0,
    val seed: ULong = 0u,
    val keep: Boolean = false,
    val sliding: Boolean = false,
)

/** Why no token follows; in the order of the ABI's numbers. */
enum class Stop { EOS, LENGTH, CALLER, STRING }

/**
 * What followed a prompt. [text] ends before a stop string; of [tokens] those of it are a part, and a stop token is not.
 * [keptTokens] of the prompt had been read before. Memory is 0 where the system does not say.
 */
class Generation internal constructor(
    val text: String,
    val tokens: LongArray,
    stop: Int,
    val promptTokens: Long,
    val prefillSeconds: Double,
    val decodeSeconds: Double,
    val anonymousBytes: Long,
    val keptTokens: Long,
) {
    val stop: Stop = Stop.entries[stop]
}

/** Called with pieces of the text, none of which cuts a character, on the thread that generates; true ends it. */
fun interface OnText {
    fun onText(piece: String): Boolean
}
