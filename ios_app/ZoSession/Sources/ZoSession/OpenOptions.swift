import CZoexport

/// What opens a bundle, as Swift has it; it must live as long as what it opened.
final class OpenOptions: @unchecked Sendable {
    private let threads: UInt32
    private let verify: Bool
    private let cache: String?
    private let keys: String?
    private let engine: EngineCallback?
    private let engineName: String?

    init(
        threads: UInt32 = 0, verify: Bool = true, engine: (any Engine)?, cache: String?, trustedKeys: [String]?,
        engineName: String? = nil
    ) throws {
        self.threads = threads
        self.verify = verify
        self.cache = try cache.map { try checked($0, "cache") }
        keys = try trustedKeys.map { try checked($0.joined(separator: "\n"), "trustedKeys") }
        self.engine = engine.map(EngineCallback.init)
        self.engineName = try engineName.map { try checked($0, "engineName") }
    }

    /// Runs `body` with the struct of the C ABI, which is valid meanwhile.
    func withC<Result>(_ body: (UnsafePointer<zo_open_options>) throws -> Result) rethrows -> Result {
        try withOptionalPointer(to: engine?.table) { table in
            try withOptionalText(cache) { folder in
                try withOptionalText(keys) { trusted in
                    try withOptionalText(engineName) { name in
                        var options = zo_open_options(
                            struct_size: UInt32(MemoryLayout<zo_open_options>.size), threads: threads,
                            skip_hashes: verify ? 0 : 1, engine: table, cache: folder, trusted_keys: trusted,
                            engine_name: name, kernel_times: 0
                        )
                        return try body(&options)
                    }
                }
            }
        }
    }
}

func withOptionalText<Result>(
    _ text: String?, _ body: (UnsafePointer<CChar>?) throws -> Result
) rethrows -> Result {
    guard let text else { return try body(nil) }
    return try text.withCString(body)
}
