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

    /// Appends the examples of a data file as people write them (docs/cli.md, "Data"), tokenized for `bundle`, whose tokenizer is
    /// open only meanwhile. On failure nothing is appended.
    ///
    /// - Parameter loss: of the run: every example must have what it compares, with `choices` choices, with `dpo` and `orpo` a pair.
    /// - Parameter pack: of the run: what is compared with nothing fills rows, long texts are divided (docs/packing.md).
    /// - Returns: how many were shortened to the bundle's rows.
    /// - Throws: `ZoError` of kind `data`: the file, or a line of it, cannot be used; of kind `bundle`: no tokenizer.
    @discardableResult
    public func read(
        _ data: URL, bundle: URL, loss: Loss = .full, pack: Bool = false, trustedKeys: [String]? = nil
    ) throws -> UInt64 {
        let path = try checked(data.path, "data"), folder = try checked(bundle.path, "bundle")
        let options = try OpenOptions(engine: nil, cache: nil, trustedKeys: trustedKeys)
        return try handle.call { dataset in
            var tokenizer: OpaquePointer?
            try options.withC { options in try verb { zo_tokenizer_open(folder, options, &tokenizer, $0) } }
            defer { zo_tokenizer_close(tokenizer) }
            var report = sized(zo_read_report())
            var read = sized(zo_read_options())
            read.loss = loss.rawValue
            read.pack = pack ? 1 : 0
            try verb { zo_dataset_read_with(dataset, tokenizer, path, &read, nil, nil, &report, $0) }
            return report.shortened
        }
    }

    /// SHA-256 of all examples in their order, in hexadecimal.
    public var digest: String {
        get throws {
            var text = [CChar](repeating: 0, count: 65)
            try handle.call { dataset in try verb { zo_dataset_digest(dataset, &text, $0) } }
            return String(cString: text)
        }
    }

    /// Frees the examples, which the last reference does too. Closing twice is allowed.
    public func close() throws {
        try handle.close()
    }
}
