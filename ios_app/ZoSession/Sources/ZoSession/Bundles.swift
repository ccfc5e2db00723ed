import CZoexport
import Foundation

/// Decodes the manifest of a bundle (docs/bundle.md), verified against its own id, and its signature if keys are given.
package func manifest<Manifest: Decodable>(of bundle: URL, trustedKeys: [String]? = nil) throws -> Manifest {
    try result { try zo_bundle_manifest(checked(bundle.path, "bundle"), json(["trusted_keys": trustedKeys]), $0, $1) }
}

/// The engines that a bundle has programs for, as `TrainingSession.init` and `JobRequest` take them by name.
public struct BundleEngines: Equatable, Sendable {
    private struct Manifest: Decodable {
        struct Fallback: Decodable { let engine: String }

        let engine: String
        let fallback: Fallback?
    }

    /// The engine that runs if none is chosen.
    public let own: String
    /// The CPU's, if the bundle has programs for it beside a GPU's.
    public let fallback: String?

    /// Reads the manifest alone, so the bundle need not open here, for lack of a GPU.
    /// - Throws: `ZoError` of kind `bundle`: missing, altered, of another version, or signed by none of the keys.
    public init(of bundle: URL, trustedKeys: [String]? = nil) throws {
        let found: Manifest = try manifest(of: bundle, trustedKeys: trustedKeys)
        (own, fallback) = (found.engine, found.fallback?.engine)
    }

    /// Names the engine that may replace `engineName` (nil: `own`) after a failure of an engine; nil if there is none. The
    /// user chooses it: the library never falls back by itself.
    public func instead(of engineName: String?, after failure: ZoError) -> String? {
        failure.kind == .engine && engineName != fallback ? fallback : nil
    }
}

/// A bundle as one file, which `zoexport pack` makes (docs/bundle.md).
public enum PackedBundle {
    /// Writes the bundle in `file` to `folder`, completely or not at all. It checks the signature first.
    /// - Parameters:
    ///   - replace: replaces what is at `folder`.
    ///   - onProgress: gets the bytes that are written, and all; true ends the call.
    /// - Throws: `ZoError` of kind `bundle`: no packed bundle, a damaged or an untrusted one; `state`: too little room;
    ///   `cancelled`.
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
