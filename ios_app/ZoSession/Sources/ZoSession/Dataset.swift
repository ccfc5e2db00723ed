import CZoexport
import Foundation

/// `labels[t]` is the token that follows `tokens[t]`, or -100 if nothing is predicted there.
public struct Candidate: Sendable {
    public var tokens, labels: [Int64]

    public init(tokens: [Int64], labels: [Int64]) {
        (self.tokens, self.labels) = (tokens, labels)
    }
}

/// The result of `Dataset.read`.
public struct ReadReport: Decodable, Sendable {
    /// Examples of the file, how many did not fit the bundle's rows, and tokens of the longest before that.
    public let examples, shortened, longest: UInt64
    /// Sentences to show before the first step.
    public let note: String
}

/// Tokenized examples, held by the library.
public final class Dataset: Sendable {
    let handle: Handle

    public init() throws { handle = Handle(zo_dataset_new(), what: "dataset", free: zo_dataset_free) }

    /// The number of examples.
    public var count: UInt64 { get throws { try handle.call(zo_dataset_size) } }

    /// Appends an example.
    /// - Parameters:
    ///   - candidates: the completions to compare, or one without choices.
    ///   - target: the index of the right one.
    /// - Throws: `ZoError` of kind `data`: no label, unequal lengths, an impossible token or target. Nothing is appended.
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

    /// Appends the examples of a JSON Lines file of tokens (docs/session.md). On failure nothing is appended.
    public func load(_ file: URL) throws {
        try handle.verb { try zo_dataset_load($0, checked(file.path, "examples"), $1) }
    }

    /// Appends the examples of a data file (docs/cli.md, "Data"), tokenized for `bundle`. On failure nothing is appended.
    /// - Parameter settings: the run's `loss` and `pack`, as both change how a file is read.
    /// - Throws: `ZoError` of kind `data`: the file, or a line of it, cannot be used; `bundle`: no tokenizer.
    @discardableResult
    public func read(
        _ data: URL, bundle: URL, settings: Settings = [:], trustedKeys: [String]? = nil
    ) throws -> ReadReport {
        var tokenizer: OpaquePointer?
        let keys = try json(["trusted_keys": trustedKeys])
        try verb { try zo_tokenizer_open(checked(bundle.path, "bundle"), keys, &tokenizer, $0) }
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
