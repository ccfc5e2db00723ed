import Foundation
import ZoSession

/// The app's folders.
public struct Places: Sendable {
    /// The job's folder too.
    public let root: URL
    /// Folder of compiled packages and shaders, which the system may empty.
    public let cache: URL

    public init(root: URL, cache: URL) {
        self.root = root
        self.cache = cache
    }

    public var bundles: URL { root.appendingPathComponent("bundles", isDirectory: true) }
    public var data: URL { root.appendingPathComponent("data", isDirectory: true) }

    /// Imports a bundle that `zoexport pack` made, in place of one of its name.
    ///
    /// - Returns: its folder.
    /// - Throws: `ZoError`: no packed bundle, a damaged or untrusted one, or too little room; nothing changes.
    public func importBundle(
        _ file: URL, trustedKeys: [String]? = nil, onProgress: ((UInt64, UInt64) -> Bool)? = nil
    ) throws -> URL {
        try FileManager.default.createDirectory(at: bundles, withIntermediateDirectories: true)
        let target = bundles.appendingPathComponent(file.deletingPathExtension().lastPathComponent, isDirectory: true)
        try PackedBundle.unpack(file, to: target, replace: true, trustedKeys: trustedKeys, onProgress: onProgress)
        return target
    }

    /// Makes the folders, and moves into them what lies at the root, where Finder puts what it copies: folders with a
    /// manifest are bundles, files that end in .jsonl are data. What has a name that is taken stays.
    public func tidy() throws {
        let files = FileManager.default
        for folder in [bundles, data] {
            try files.createDirectory(at: folder, withIntermediateDirectories: true)
        }
        for name in try files.contentsOfDirectory(atPath: root.path) {
            let found = root.appendingPathComponent(name)
            if files.fileExists(atPath: found.appendingPathComponent("manifest.json").path) {
                try? files.moveItem(at: found, to: bundles.appendingPathComponent(name))
            } else if name.hasSuffix(".jsonl") {
                try? files.moveItem(at: found, to: data.appendingPathComponent(name))
            }
        }
    }
}
