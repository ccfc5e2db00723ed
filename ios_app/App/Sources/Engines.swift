import Foundation
import ZoCoreML
import ZoSession

/// What runs a bundle's programs: Core ML for its packages; for others what the library has, which is MLX.
enum Engines {
    private struct Manifest: Decodable {
        let engine: String
    }

    static func engine(of bundle: URL, cache: URL) async throws -> (any Engine)? {
        // What is no manifest, the session says.
        guard let content = try? Data(contentsOf: bundle.appendingPathComponent("manifest.json")),
            let manifest = try? JSONDecoder().decode(Manifest.self, from: content), manifest.engine == "coreml"
        else { return nil }
        let folder = cache.appendingPathComponent("coreml", isDirectory: true)
        return try PackageEngine(bundle: bundle, functions: try await CoreMLFunctions(bundle: bundle, cache: folder))
    }
}
