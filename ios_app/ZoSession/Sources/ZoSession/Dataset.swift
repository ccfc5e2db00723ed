import CZoexport
import Foundation

/// `labels[t]` is the token that follows `tokens[t]`, or -100 if nothing is predicted there.
public struct Candidate: Sendable {
    public var tokens, labels: [Int64]

    public init(tokens: [Int64], labels: [Int64]) { (self.tokens, self.labels) = (tokens, labels) }
}

/// Examples of a file, how many did not fit the bundle's rows, tokens of the longest before that, and sentences to show.
public struct ReadReport: Decodable, Sendable {
    public let examples, shortened, longest: UInt64
    public let note: String
}

/// Tokenized examples, held by the library. What cannot be used is a `ZoError` of kind `data`, and nothing is appended.
public final class Dataset: Sendable {
    let handle: Handle

    public init() throws { handle = Handle(zo_dataset_new(), what: "dataset", free: zo_dataset_free) }

    public var count: UInt64 { get throws { try handle.call(zo_dataset_size) } }

    /// Appends an example, with one candidate unless there are choices; `target` is the index of the right one.
    public func add(_ candidates: [Candidate], target: UInt = 0) throws {
        try handle.call { dataset in
            for candidate in candidates where candidate.tokens.count != candidate.labels.count {
                throw ZoError(
                    .data, where: "example \(zo_dataset_size(dataset))",
                    found: "\(candidate.tokens.count) tokens and \(candidate.labels.count) labels",
                    expected: "as many labels as tokens", fix: "Give -100 where nothing is to be predicted."
                )
            }
            // One array holds all numbers, so that one pointer is valid for all candidates.
            try candidates.flatMap { $0.tokens + $0.labels }.withUnsafeBufferPointer { numbers in
                var next = numbers.baseAddress
                let all = candidates.map { candidate in
                    let length = candidate.tokens.count, tokens = next
                    next = next.map { $0 + 2 * length }
                    return zo_candidate(tokens: tokens, labels: tokens.map { $0 + length }, length: length)
                }
                try verb { zo_dataset_add(dataset, all, all.count, Int(bitPattern: target), $0) }
            }
        }
    }

    /// Appends the examples of a JSON Lines file of tokens (docs/formats.md).
    public func load(_ file: URL) throws { try handle.verb { try zo_dataset_load($0, checked(file.path, "examples"), $1) } }

    /// Appends the examples of a data file (docs/formats.md, "Training data"), tokenized for `bundle`.
    /// - Parameter settings: the run's `loss` and `pack`, as both change how a file is read.
    @discardableResult
    public func read(_ data: URL, bundle: URL, settings: Settings = [:], trustedKeys: [String]? = nil) throws -> ReadReport {
        let keys = try json(["trusted_keys": trustedKeys])
        let tokenizer = try opened { try zo_tokenizer_open(checked(bundle.path, "bundle"), keys, $0, $1) }
        defer { zo_tokenizer_close(tokenizer) }
        return try handle.read {
            try zo_dataset_read($0, tokenizer, checked(data.path, "data"), json(settings), nil, nil, $1, $2)
        }
    }

    /// SHA-256 of all examples in their order, in hexadecimal.
    public var digest: String {
        get throws {
            var text = [CChar](repeating: 0, count: 65)
            try handle.verb { zo_dataset_digest($0, &text, $1) }
            return String(cString: text)
        }
    }

    /// Frees the examples, as the last reference does. Closing twice is allowed.
    public func close() throws { try handle.close() }
}

/// A message of a conversation; `role` is "system", "user" or "assistant".
public struct Message: Codable, Equatable, Sendable {
    public let role: String
    public var content: String

    public init(role: String, content: String) { (self.role, self.content) = (role, content) }
}

/// An example that a user typed: a prompt and its completion, or a conversation in their place.
public struct TypedExample: Encodable, Identifiable, Sendable {
    private enum CodingKeys: CodingKey { case prompt, completion, messages }

    public let id = UUID()
    public var prompt, completion: String
    public var messages: [Message]?

    public init(prompt: String = "", completion: String = "", messages: [Message]? = nil) {
        (self.prompt, self.completion, self.messages) = (prompt, completion, messages)
    }

    public func encode(to encoder: any Encoder) throws {
        var container = encoder.container(keyedBy: CodingKeys.self)
        if let messages { return try container.encode(messages, forKey: .messages) }
        try container.encode(prompt, forKey: .prompt)
        try container.encode(completion, forKey: .completion)
    }

    /// Writes or appends to a data file, completely or not at all. Refuses, by its number, what could not be learned.
    public static func write(_ examples: [TypedExample], to file: URL, append: Bool = false) throws {
        try verb { try zo_typed_write(checked(file.path, "file"), json(examples), append ? 1 : 0, $0) }
    }
}

/// Decodes the manifest of a bundle (docs/formats.md), verified against its own id, and its signature if keys are given.
package func manifest<Manifest: Decodable>(of bundle: URL, trustedKeys: [String]? = nil) throws -> Manifest {
    try result { try zo_bundle_manifest(checked(bundle.path, "bundle"), json(["trusted_keys": trustedKeys]), $0, $1) }
}

/// The engines that a bundle has programs for: its own, and the CPU's if a GPU's bundle has some for it.
public struct BundleEngines: Equatable, Sendable {
    private struct Manifest: Decodable {
        struct Fallback: Decodable { let engine: String }

        let engine: String
        let fallback: Fallback?
    }

    public let own: String
    public let fallback: String?

    /// Reads the manifest alone, so the bundle need not open here, for lack of a GPU.
    public init(of bundle: URL, trustedKeys: [String]? = nil) throws {
        let found: Manifest = try manifest(of: bundle, trustedKeys: trustedKeys)
        (own, fallback) = (found.engine, found.fallback?.engine)
    }
}

/// A bundle as one file, which `zoexport pack` makes (docs/formats.md).
public enum PackedBundle {
    /// Writes the bundle in `file` to `folder`, completely or not at all. It checks the signature first.
    /// - Parameter onProgress: gets the bytes that are written, and all; true ends the call.
    public static func unpack(
        _ file: URL, to folder: URL, replace: Bool? = nil, trustedKeys: [String]? = nil,
        onProgress: ((UInt64, UInt64) -> Bool)? = nil
    ) throws {
        typealias Part = (UInt64, UInt64)
        let from = try checked(file.path, "file"), target = try checked(folder.path, "folder")
        let options = try json(["replace": replace, "trusted_keys": trustedKeys])
        try Callback<Part>(onProgress.map { body in { body($0.0, $0.1) } }).during { user in
            try verb { zo_bundle_unpack(from, target, options, { Callback<Part>.of($0).call(($1, $2)) }, user, $0) }
        }
    }
}
