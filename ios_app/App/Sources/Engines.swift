import CoreML
import Foundation
import ZoCoreML
import ZoSession

/// Chooses the engine of a bundle: Core ML for its packages, and the library's own, which is MLX, for others.
enum Engines {
    /// The engine that a bundle names; nil without a manifest, which the session reports.
    static func name(of bundle: URL) -> String? { try? BundleEngines(of: bundle).own }

    static func engine(of bundle: URL, cache: URL) async throws -> (any Engine)? {
        guard name(of: bundle) == "coreml" else { return nil }
        let folder = cache.appendingPathComponent("coreml", isDirectory: true)
        // The GPU is for the foreground alone, and a run may go on in the background.
        let functions = try await CoreMLFunctions(bundle: bundle, cache: folder, units: .cpuAndNeuralEngine)
        return try PackageEngine(bundle: bundle, functions: functions)
    }
}
