import Foundation
import Tokenizers
import ZoTraining

/// The tokenizer of a bundle, read by swift-transformers from its tokenizer.json.
struct BundleTokenizer: Tokenizing, @unchecked Sendable {
    // Its tokenizers are read-only after loading.
    private let tokenizer: any Tokenizer

    init(bundle: URL) async throws {
        tokenizer = try await AutoTokenizer.from(modelFolder: bundle)
    }

    func encode(_ text: String, special: Bool) throws -> [Int] {
        tokenizer.encode(text: text, addSpecialTokens: special)
    }

    func encode(_ messages: [[String: String]], prompting: Bool) throws -> [Int] {
        try tokenizer.applyChatTemplate(
            messages: messages.map { $0 as [String: any Sendable] }, chatTemplate: nil,
            addGenerationPrompt: prompting, truncation: false, maxLength: nil, tools: nil
        )
    }
}
