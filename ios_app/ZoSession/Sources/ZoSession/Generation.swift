import CZoexport
import Foundation

/// A message of a conversation; `role` is "system", "user" or "assistant".
public struct Message: Codable, Equatable, Sendable {
    public let role: String
    public var content: String

    public init(role: String, content: String) {
        (self.role, self.content) = (role, content)
    }
}

/// How to generate (docs/generate.md); nil: the library's default.
public struct GenerateOptions: Encodable, Sendable {
    fileprivate var prompt: String?
    fileprivate var messages: [Message]?
    /// Strings before the first of which the text ends.
    public var stop: [String]?
    /// The name of a loaded adapter to use instead of the run.
    public var adapter: String?
    public var temperature, topP, minP, repetitionPenalty: Double?
    public var maxTokens, topK: UInt32?
    public var seed: UInt64?
    /// Uses the bundle's own weights; keeps the caches for a longer prompt; continues past the context.
    public var untrained, keep, sliding: Bool?

    public init() {}
}

/// Generated text.
public struct Generation: Decodable, Sendable {
    private enum CodingKeys: CodingKey {
        case text, stop, promptTokens, prefillSeconds, decodeSeconds, anonymousBytes, keptTokens
    }

    public enum Stop: String, Decodable, Sendable { case eos, length, caller, string }

    /// The text up to a stop string.
    public let text: String
    /// Its tokens and those of a stop string, without a stop token.
    public fileprivate(set) var tokens: [Int64] = []
    public let stop: Stop
    /// Tokens of the prompt, and how many of them an earlier call had read.
    public let promptTokens, keptTokens: UInt64
    public let prefillSeconds, decodeSeconds: Double
    /// Memory; 0: not known.
    public let anonymousBytes: UInt64
}

extension TrainingSession {
    /// Continues a text, or a conversation with the assistant's response. Changes no state.
    /// - Parameter onText: called with pieces of the text, on this thread; true or an error ends it.
    /// - Throws: the error of `onText`, or `ZoError` of kind `bundle`: no programs that generate, or no tokenizer;
    ///   `invalidArgument`: a prompt that is empty or too long, an option out of range, an unknown adapter.
    public func generate(
        _ prompt: String? = nil, messages: [Message]? = nil, options: GenerateOptions = GenerateOptions(),
        onText: ((String) throws -> Bool)? = nil
    ) throws -> Generation {
        var options = options
        (options.prompt, options.messages) = (prompt, messages)
        let text = try json(options), listener = TextCallback(onText)
        var made: Generation = try listener.during { user in
            try handle.read { zo_session_generate($0, text, TextCallback.onToken, TextCallback.onText, user, $1, $2) }
        }
        made.tokens = listener.tokens
        return made
    }

    /// Frees what `generate` keeps between calls, as a step does.
    public func forget() throws { try handle.verb(zo_session_forget) }
}

private final class TextCallback: Callback<String>, @unchecked Sendable {
    var tokens: [Int64] = []

    static let onToken: zo_on_token = { user, token in
        of(user).tokens.append(token)
        return 0
    }
    static let onText: zo_on_text = { user, text, size in
        of(user).call(String(decoding: UnsafeRawBufferPointer(start: text, count: size), as: UTF8.self))
    }
}
