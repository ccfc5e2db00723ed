import Foundation
import ZoSession

/// A tokenizer that reads a bundle's tokenizer.json.
public protocol Tokenizing: Sendable {
    /// The tokens of a text. `special`: with those that the tokenizer adds by its own configuration, such as a first one.
    func encode(_ text: String, special: Bool) throws -> [Int]

    /// A conversation through the model's chat template; `prompting`: with the header of the turn that is to follow.
    func encode(_ messages: [[String: String]], prompting: Bool) throws -> [Int]
}

/// Completions to compare (one where nothing is compared), and the index of the right one.
public struct Example: Sendable {
    public let candidates: [Candidate]
    public let target: Int
}

/// JSON Lines as `zoexport train` takes them, to examples: the rules of docs/cli.md.
public struct ExampleReader: Sendable {
    private static let shapes =
        #"{"text"}, {"prompt", "completion"}, {"prompt", "completion", "choices"} or {"messages"}"#
    private static let ignored: Int64 = -100

    private let tokenizer: any Tokenizing
    private let seqLen: Int

    public init(tokenizer: any Tokenizing, seqLen: Int) {
        self.tokenizer = tokenizer
        self.seqLen = seqLen
    }

    /// - Returns: the examples of a file, and how many of them did not fit into `seqLen` tokens as they are.
    /// - Throws: `ZoError` of kind `data`: no file, no examples, or a line that cannot be used.
    public func read(_ file: URL) throws -> (examples: [Example], shortened: Int) {
        guard let content = try? Data(contentsOf: file) else {
            throw problem("data \(file.path)", "no file that can be read", "a JSON Lines file", "Choose another file.")
        }
        var examples: [Example] = []
        var shortened = 0
        for (index, line) in content.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false).enumerated() {
            let bytes = index == 0 && line.starts(with: [0xef, 0xbb, 0xbf]) ? line.dropFirst(3) : line
            if bytes.allSatisfy({ [0x20, 0x09, 0x0d].contains($0) }) { continue }
            let (example, short) = try self.example(of: Data(bytes), "\(file.lastPathComponent):\(index + 1)")
            examples.append(example)
            shortened += short ? 1 : 0
        }
        if examples.isEmpty {
            throw problem(
                "data \(file.lastPathComponent)", "no examples", "one JSON object a line: \(Self.shapes)",
                "Write at least one example."
            )
        }
        return (examples, shortened)
    }

    private func example(of line: Data, _ place: String) throws -> (Example, Bool) {
        guard let object = try? JSONSerialization.jsonObject(with: line) as? [String: Any] else {
            throw problem(place, "no JSON object", "one JSON object a line: \(Self.shapes)", "Correct the line.")
        }
        if object["tools"] != nil {
            throw problem(
                place, "the key 'tools'", "one of the shapes \(Self.shapes)",
                "Render tool descriptions into the system message and remove the key."
            )
        }
        try refuseMisspelled(object, place)
        let isText = object["text"] != nil
        let isCompletion = !object.keys.allSatisfy { !["prompt", "completion", "choices"].contains($0) }
        let isChat = object["messages"] != nil
        guard [isText, isCompletion, isChat].filter({ $0 }).count == 1 else {
            throw problem(
                place, "the keys \(object.keys.sorted().joined(separator: ", "))", "exactly one of \(Self.shapes)",
                "Rename or remove keys."
            )
        }
        if isText {
            let tokens = try tokenizer.encode(try text(object, "text", place), special: true)
            return try made([([], tokens)], target: 0, place)
        }
        if isChat {
            return try made([try conversation(object, place)], target: 0, place)
        }
        let prompt = try tokenizer.encode(try text(object, "prompt", place), special: true)
        let completion = try text(object, "completion", place)
        let choices = try self.choices(object, completion, place)
        let sequences = try choices.map { (prompt, try tokenizer.encode($0, special: false)) }
        return try made(sequences, target: index(of: completion, in: choices)!, place)
    }

    /// Other keys are allowed (ids, sources), but "choice" for "choices" would change the task silently.
    private func refuseMisspelled(_ object: [String: Any], _ place: String) throws {
        func stem(_ key: String) -> String { String(key.lowercased().reversed().drop { $0 == "s" }.reversed()) }
        let known = ["text", "prompt", "completion", "choices", "messages"]
        for key in object.keys.sorted() where !known.contains(key) {
            if let meant = known.first(where: { stem($0) == stem(key) && object[$0] == nil }) {
                throw problem(place, "the key '\(key)'", "a key such as '\(meant)'", "Rename the key.")
            }
        }
    }

    private func choices(_ object: [String: Any], _ completion: String, _ place: String) throws -> [String] {
        guard !completion.isEmpty else {
            throw problem(place, "an empty 'completion'", "text to be learned", "Give the completion, or remove the line.")
        }
        guard let given = object["choices"] else { return [completion] }
        // As bytes: Swift's strings are equal where they look alike.
        guard let choices = given as? [String], choices.count > 1, !choices.contains(""),
            Set(choices.map { Data($0.utf8) }).count == choices.count, index(of: completion, in: choices) != nil
        else {
            throw problem(
                place, "'choices' that cannot be compared",
                "a list of two or more different completions, the right one among them",
                #"Write "choices": [" yes", " no"]."#
            )
        }
        return choices
    }

    private func index(of completion: String, in choices: [String]) -> Int? {
        choices.firstIndex { $0.utf8.elementsEqual(completion.utf8) }
    }

    /// The tokens before the last turn, and those of the turn.
    private func conversation(_ object: [String: Any], _ place: String) throws -> ([Int], [Int]) {
        guard let messages = object["messages"] as? [[String: String]], messages.last?["role"] == "assistant",
            messages.allSatisfy({ $0["role"] != nil && $0["content"] != nil }),
            let answer = messages.last?["content"]?.drop(while: \.isWhitespace), let first = answer.first
        else {
            throw problem(
                place, "'messages' of another form", "turns with 'role' and 'content', the last one the assistant's and not empty",
                "Correct the messages."
            )
        }
        let whole = try tokenizer.encode(messages, prompting: false)
        let prompt = try tokenizer.encode(Array(messages.dropLast()), prompting: true)
        var shared = zip(whole, prompt).prefix { $0 == $1 }.count
        if shared < prompt.count {
            // The template opens a turn that is to follow otherwise: another answer parts where the answer begins.
            var changed = messages
            changed[changed.count - 1]["content"] = first == "a" ? "b" : "a"
            shared = zip(whole, try tokenizer.encode(changed, prompting: false)).prefix { $0 == $1 }.count
        }
        return (Array(whole[..<shared]), Array(whole[shared...]))
    }

    /// Tokens are dropped from the prompt's start, as many as the longest choice needs; what is too long by itself is
    /// cut at its end.
    private func made(_ sequences: [([Int], [Int])], target: Int, _ place: String) throws -> (Example, Bool) {
        let room = max(seqLen - sequences.map(\.1.count).max()!, 0)
        var shortened = false
        let candidates = try sequences.map { prompt, completion in
            let kept = prompt.suffix(room)
            let tokens = (Array(kept) + completion).prefix(seqLen).map { Int64($0) }
            shortened = shortened || tokens.count < prompt.count + completion.count
            // Nothing precedes the first token, so it is never predicted.
            let start = max(kept.count, 1)
            guard start < tokens.count else {
                throw problem(
                    place, "\(prompt.count + completion.count) tokens, none of which can be predicted",
                    "at least one token to be learned that another token precedes", "Give a longer text, or a prompt."
                )
            }
            var labels = [Int64](repeating: Self.ignored, count: tokens.count)
            labels.replaceSubrange((start - 1)..<(tokens.count - 1), with: tokens[start...])
            return Candidate(tokens: tokens, labels: labels)
        }
        guard Set(sequences.map(\.1)).count == sequences.count else {
            throw problem(
                place, "choices that the tokenizer turns into the same tokens", "choices that differ in their tokens",
                "Choose other words for the choices."
            )
        }
        return (Example(candidates: candidates, target: target), shortened)
    }

    private func text(_ object: [String: Any], _ key: String, _ place: String) throws -> String {
        guard let text = object[key] as? String else {
            throw problem(place, "no text '\(key)'", "text", "Give the text of '\(key)'.")
        }
        return text
    }

    private func problem(_ place: String, _ found: String, _ expected: String, _ fix: String) -> ZoError {
        ZoError(.data, where: place, found: found, expected: expected, fix: fix)
    }
}
