import CZoexport
import Foundation

/// The engines that a bundle has programs for, as `TrainingSession.init` and `JobRequest` take them by name.
public struct BundleEngines: Equatable, Sendable {
    /// The one that takes its programs where none is chosen.
    public let own: String
    /// The CPU's, where the bundle has programs for it beside a GPU's; nil: none.
    public let fallback: String?

    /// Reads the manifest alone: also of a bundle that cannot be opened here, for want of a GPU.
    ///
    /// - Parameter trustedKeys: as `TrainingSession.init` takes them.
    /// - Throws: `ZoError` of kind `bundle`: missing, altered, of another version, or signed by none of the keys.
    public init(of bundle: URL, trustedKeys: [String]? = nil) throws {
        try checkVersion()
        let path = try checked(bundle.path, "bundle")
        let options = try OpenOptions(engine: nil, cache: nil, trustedKeys: trustedKeys)
        var found = sized(zo_engines())
        try options.withC { options in try verb { zo_bundle_engines(path, options, &found, $0) } }
        own = text(found.own)
        let other = text(found.fallback)
        fallback = other.isEmpty ? nil : other
    }

    /// The engine that may do what `engineName` (nil: `own`) could not, when opening or training failed so; nil: no other one,
    /// or no failure of an engine. It is the person's to choose: nothing falls back by itself.
    public func instead(of engineName: String?, after failure: ZoError) -> String? {
        failure.kind == .engine && engineName != fallback ? fallback : nil
    }
}
