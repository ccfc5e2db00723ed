import CZoexport
import Foundation

/// An example that a user typed: a prompt and its completion, or a conversation.
public struct TypedExample: Encodable, Identifiable, Sendable {
    private enum CodingKeys: CodingKey { case prompt, completion, messages }

    public let id = UUID()
    public var prompt, completion: String
    /// A conversation in place of both, which ends with the assistant's message.
    public var messages: [Message]?

    public init(prompt: String = "", completion: String = "") {
        (self.prompt, self.completion) = (prompt, completion)
    }

    public init(messages: [Message]) {
        self.init()
        self.messages = messages
    }

    public func encode(to encoder: any Encoder) throws {
        var container = encoder.container(keyedBy: CodingKeys.self)
        if let messages { return try container.encode(messages, forKey: .messages) }
        try container.encode(prompt, forKey: .prompt)
        try container.encode(completion, forKey: .completion)
    }

    /// Writes examples as a data file, completely or not at all.
    /// - Parameter append: keeps the lines of the file, if there is one.
    /// - Throws: `ZoError` of kind `data`: an example that could not be learned, by its number; the file stays as it was.
    public static func write(_ examples: [TypedExample], to file: URL, append: Bool = false) throws {
        try verb { try zo_typed_write(checked(file.path, "file"), json(examples), append ? 1 : 0, $0) }
    }
}
