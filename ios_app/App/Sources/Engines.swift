import CoreML
import Foundation
import ZoCoreML
import ZoSession

/// What runs a bundle's programs: Core ML for its packages; for others what the library has, which is MLX.
enum Engines {
    private struct Manifest: Decodable {
        let engine: String
    }

    /// The engine that a bundle names; nil of what is no manifest, which the session says.
    static func name(of bundle: URL) -> String? {
        let content = try? Data(contentsOf: bundle.appendingPathComponent("manifest.json"))
        return content.flatMap { try? JSONDecoder().decode(Manifest.self, from: $0) }?.engine
    }

    static func engine(of bundle: URL, cache: URL) async throws -> (any Engine)? {
        guard name(of: bundle) == "coreml" else { return nil }
        let folder = cache.appendingPathComponent("coreml", isDirectory: true)
        // The GPU is for the foreground alone, and a run may go on in the background.
        let functions = try await CoreMLFunctions(bundle: bundle, cache: folder, units: .cpuAndNeuralEngine)
        return try PackageEngine(bundle: bundle, functions: functions)
    }
}
