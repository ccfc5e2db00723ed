import ZoSession

// Typed examples: templates and checks.
extension TypedExample {
    /// A conversation to fill: a system message, which may stay empty, and the first turn.
    public static var conversation: TypedExample {
        var example = TypedExample(messages: [Message(role: "system", content: "")])
        example.addTurn()
        return example
    }

    /// Adds what the user says and what the assistant answers.
    public mutating func addTurn() {
        messages?.append(Message(role: "user", content: ""))
        messages?.append(Message(role: "assistant", content: ""))
    }

    /// True if there is something to learn.
    public var isComplete: Bool { !(messages.map { $0.last?.content ?? "" } ?? completion).isEmpty }

    /// True if nothing was typed.
    public var isBlank: Bool { (messages.map { $0.map(\.content) } ?? [prompt, completion]).allSatisfy(\.isEmpty) }

    /// The example as it is written: without a system message that stayed empty.
    public var typed: TypedExample {
        var example = self
        example.messages?.removeAll { $0.role == "system" && $0.content.isEmpty }
        return example
    }
}
