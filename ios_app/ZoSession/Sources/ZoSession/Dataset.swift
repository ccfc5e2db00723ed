import CZoexport
import Foundation

/// `labels[t]` is the token that follows `tokens[t]`, or -100 where nothing is predicted.
public struct Candidate: Sendable {
    public var tokens: [Int64]
    public var labels: [Int64]

    public init(tokens: [Int64], labels: [Int64]) {
        self.tokens = tokens
        self.labels = labels
    }
}

/// Tokenized examples, held by the session's library.
public final class Dataset: Sendable {
    let handle: Handle

    public init() throws {
        try checkVersion()
        guard let address = zo_dataset_new() else {
            throw ZoError(
                .internal, where: "dataset", found: "no memory left", expected: "enough for a dataset",
                fix: "Close other programs."
            )
        }
        handle = Handle(address, what: "dataset", free: zo_dataset_free)
    }

    /// The number of examples.
    public var count: UInt64 {
        get throws { try handle.call(zo_dataset_size) }
    }

    /// Appends an example.
    ///
    /// - Parameters:
    ///   - candidates: the completions to compare; one where there are no choices.
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
            let numbers = candidates.flatMap { $0.tokens + $0.labels }
            try numbers.withUnsafeBufferPointer { buffer in
                var next = buffer.baseAddress
                let packed = candidates.map { candidate in
                    let length = candidate.tokens.count
                    let tokens = next
                    next = next.map { $0 + 2 * length }
                    return zo_candidate(tokens: tokens, labels: tokens.map { $0 + length }, length: length)
                }
                try verb { zo_dataset_add(dataset, packed, packed.count, Int(bitPattern: target), $0) }
            }
        }
    }

    /// Appends the examples of a JSON Lines file (docs/session.md). On failure nothing is appended.
    public func load(_ file: URL) throws {
        let path = try checked(file.path, "examples")
        try handle.call { dataset in try verb { zo_dataset_load(dataset, path, $0) } }
    }

    /// Frees the examples, which the last reference does too. Closing twice is allowed.
    public func close() throws {
        try handle.close()
    }
}
