import CZoexport
import Foundation

/// A turn of a conversation; `role` is "system", "user" or "assistant".
public struct Message: Equatable, Sendable {
    public let role: String
    public var content: String

    public init(role: String, content: String) {
        self.role = role
        self.content = content
    }
}

/// How to generate. As it stands, with what was trained, the most likely token each time (docs/generate.md).
public struct GenerateOptions: Sendable {
    /// Tokens that follow the prompt at most.
    public var maxTokens: UInt32 = 256
    /// The text ends before the first of these.
    public var stop: [String] = []
    /// The name of one that `loadAdapter` loaded, in place of what was trained.
    public var adapter: String?
    /// With the slots as the bundle has them.
    public var untrained = false
    /// 0: the most likely token.
    public var temperature = 0.0
    /// 0: all tokens may follow.
    public var topK: UInt32 = 0
    public var topP = 1.0
    public var minP = 0.0
    public var repetitionPenalty = 1.0
    public var seed: UInt64 = 0
    /// Keeps the caches, so that a longer prompt that begins alike is read from there on.
    public var keep = false
    /// Past the bundle's context goes on over the last part of the text.
    public var sliding = false

    public init() {}
}

/// What followed a prompt.
public struct Generation: Sendable {
    /// Why no token follows.
    public enum Stop: Int32, Sendable {
        case eos, length, caller, string
    }

    /// Up to a stop string.
    public let text: String
    /// Those of a stop string among them; a stop token is not.
    public let tokens: [Int64]
    public let stop: Stop
    public let promptTokens: UInt64
    public let prefillSeconds: Double
    public let decodeSeconds: Double
    /// 0 where the system does not say.
    public let anonymousBytes: UInt64
    /// Of the prompt, that had been read before.
    public let keptTokens: UInt64
}

extension TrainingSession {
    /// Generates what follows a text, with the bundle's tokenizer. Changes no state.
    ///
    /// - Parameter onText: called with pieces of the text, none of which cuts a character, on this thread; true ends it. An
    ///   error of it does so too, and comes out of here.
    /// - Throws: `ZoError` of kind `bundle`: no programs that generate, or no tokenizer, and why; of kind `invalidArgument`: a
    ///   prompt that is empty or too long, an option out of range, an unknown adapter.
    public func generate(
        _ prompt: String, options: GenerateOptions = GenerateOptions(), onText: ((String) throws -> Bool)? = nil
    ) throws -> Generation {
        let text = Array(prompt.utf8)
        return try generated(options, onText) { chosen, run in
            // An empty array may have no address, which would be no text.
            try (text + [0]).withUnsafeBytes { bytes in
                chosen.text = bytes.bindMemory(to: CChar.self).baseAddress
                chosen.text_size = text.count
                return try run(&chosen)
            }
        }
    }

    /// Generates the assistant's answer in a conversation, which the model's chat template writes; as for a text.
    public func generate(
        messages: [Message], options: GenerateOptions = GenerateOptions(), onText: ((String) throws -> Bool)? = nil
    ) throws -> Generation {
        let roles = CTexts(try messages.map { try checked($0.role, "role") })
        let contents = CTexts(try messages.map { try checked($0.content, "content") })
        let turns = zip(roles.pointers, contents.pointers).map { zo_message(role: $0, content: $1) }
        return try withExtendedLifetime((roles, contents)) {
            try generated(options, onText) { chosen, run in
                try turns.withUnsafeBufferPointer { turns in
                    chosen.messages = turns.baseAddress
                    chosen.message_count = turns.count
                    return try run(&chosen)
                }
            }
        }
    }

    /// Frees what `generate` keeps between calls: caches, and the tokenizer. A step frees it too.
    public func forget() throws {
        try handle.call { session in try verb { zo_session_forget(session, $0) } }
    }

    /// - Parameter prompt: puts the prompt into the options, and calls what it is given while the prompt's memory is there.
    private func generated(
        _ options: GenerateOptions, _ onText: ((String) throws -> Bool)?,
        prompt: (inout zo_generate_options, (inout zo_generate_options) throws -> Generation) throws -> Generation
    ) throws -> Generation {
        let listener = TextCallback(onText)
        let stops = CTexts(try options.stop.map { try checked($0, "stop") })
        let adapter = CTexts(try options.adapter.map { [try checked($0, "adapter")] } ?? [])
        var chosen = sized(zo_generate_options())
        chosen.max_tokens = options.maxTokens
        chosen.untrained = options.untrained ? 1 : 0
        chosen.temperature = options.temperature
        chosen.top_k = options.topK
        chosen.top_p = options.topP
        chosen.min_p = options.minP
        chosen.repetition_penalty = options.repetitionPenalty
        chosen.seed = options.seed
        chosen.on_text = listener.onText
        chosen.adapter = adapter.pointers.first ?? nil
        chosen.keep = options.keep ? 1 : 0
        chosen.sliding = options.sliding ? 1 : 0
        let result = Result {
            try withExtendedLifetime((listener, stops, adapter)) {
                try prompt(&chosen) { chosen in
                    try stops.pointers.withUnsafeBufferPointer { pointers in
                        chosen.stop_strings = pointers.baseAddress
                        chosen.stop_string_count = pointers.count
                        return try handle.call { try run(on: $0, &chosen, listener) }
                    }
                }
            }
        }
        if let thrown = listener.thrown {
            throw thrown
        }
        return try result.get()
    }

    private func run(
        on session: OpaquePointer, _ options: inout zo_generate_options, _ listener: TextCallback
    ) throws -> Generation {
        var made = sized(zo_generation())
        try verb { zo_session_generate(session, &options, listener.onToken, listener.user, &made, $0) }
        let bytes = UnsafeRawBufferPointer(start: made.text, count: made.text_size)
        return Generation(
            text: String(decoding: bytes, as: UTF8.self), tokens: listener.tokens,
            stop: Generation.Stop(rawValue: made.stop)!, promptTokens: made.prompt_tokens,
            prefillSeconds: made.prefill_seconds, decodeSeconds: made.decode_seconds,
            anonymousBytes: made.anonymous_bytes, keptTokens: made.kept_tokens
        )
    }
}

/// What the library calls while it generates. It must live as long as the call.
private final class TextCallback {
    private let body: ((String) throws -> Bool)?
    private(set) var tokens: [Int64] = []
    private(set) var thrown: (any Error)?

    init(_ body: ((String) throws -> Bool)?) {
        self.body = body
    }

    var user: UnsafeMutableRawPointer { Unmanaged.passUnretained(self).toOpaque() }

    let onToken: zo_on_token = { user, token in
        Unmanaged<TextCallback>.fromOpaque(user!).takeUnretainedValue().tokens.append(token)
        return 0
    }

    /// No error crosses C: it is kept until the call returns.
    let onText: zo_on_text = { user, text, size in
        let callback = Unmanaged<TextCallback>.fromOpaque(user!).takeUnretainedValue()
        let piece = String(decoding: UnsafeRawBufferPointer(start: text, count: size), as: UTF8.self)
        do {
            return try callback.body?(piece) == true ? 1 : 0
        } catch {
            callback.thrown = error
            return 1
        }
    }
}

/// Texts as C has them, while this object lives.
final class CTexts {
    private let texts: [UnsafeMutablePointer<CChar>]

    init(_ texts: [String]) {
        self.texts = texts.map { strdup($0)! }
    }

    var pointers: [UnsafePointer<CChar>?] { texts.map { UnsafePointer($0) } }

    deinit {
        texts.forEach { free($0) }
    }
}
