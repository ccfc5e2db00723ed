import CZoexport
import Foundation

/// An example that a person typed: a prompt and its completion, or a conversation.
public struct TypedExample: Identifiable, Sendable {
    public let id = UUID()
    public var prompt: String
    public var completion: String
    /// Unless it is nil, in place of them; the last is the assistant's, and is learned.
    public var messages: [Message]?

    public init(prompt: String = "", completion: String = "") {
        self.prompt = prompt
        self.completion = completion
    }

    public init(messages: [Message]) {
        self.init()
        self.messages = messages
    }

    /// Writes examples as a data file, whole or not at all.
    ///
    /// - Parameter append: after the lines of the file that is there; else in place of it.
    /// - Throws: `ZoError` of kind `data`: an example that could not be learned, by its number; the file stays as it was.
    public static func write(_ examples: [TypedExample], to file: URL, append: Bool = false) throws {
        try checkVersion()
        let path = try checked(file.path, "file")
        // A pair's texts stand in one message.
        let texts = examples.map { $0.messages ?? [Message(role: $0.prompt, content: $0.completion)] }
        let roles = CTexts(try texts.joined().map { try checked($0.role, "examples") })
        let contents = CTexts(try texts.joined().map { try checked($0.content, "examples") })
        let all = zip(roles.pointers, contents.pointers).map { zo_message(role: $0, content: $1) }
        try withExtendedLifetime((roles, contents)) {
            try all.withUnsafeBufferPointer { all in
                var next = 0
                let typed = zip(examples, texts).map { example, messages in
                    defer { next += messages.count }
                    var typed = sized(zo_typed_example())
                    if example.messages == nil {
                        (typed.prompt, typed.completion) = (all[next].role, all[next].content)
                    } else {
                        (typed.messages, typed.message_count) = (all.baseAddress.map { $0 + next }, messages.count)
                    }
                    return typed
                }
                try verb { zo_typed_write(path, typed, typed.count, append ? 1 : 0, $0) }
            }
        }
    }
}
