import CZoexport
import Foundation

/// A bundle as one file, which `zoexport pack` makes (docs/bundle.md).
public enum PackedBundle {
    /// Writes the bundle in `file` to `folder`, whole or not at all; its signature is checked first, its hashes on the way.
    ///
    /// - Parameters:
    ///   - replace: what is at `folder` gives way.
    ///   - trustedKeys: as `TrainingSession.init` takes them.
    ///   - onProgress: called with the bytes that are written, of so many; true ends it.
    /// - Throws: `ZoError` of kind `bundle`: no packed bundle, a damaged one, or one that none of the keys signed; of kind
    ///   `state`: too little room; of kind `cancelled`.
    public static func unpack(
        _ file: URL, to folder: URL, replace: Bool = false, trustedKeys: [String]? = nil,
        onProgress: ((UInt64, UInt64) -> Bool)? = nil
    ) throws {
        try checkVersion()
        let from = try checked(file.path, "file"), target = try checked(folder.path, "folder")
        let keys = try trustedKeys.map { try checked($0.joined(separator: "\n"), "trustedKeys") }
        let listener = UnpackListener(onProgress)
        try withExtendedLifetime(listener) {
            try withOptionalText(keys) { keys in
                var options = zo_unpack_options(
                    struct_size: UInt32(MemoryLayout<zo_unpack_options>.size), replace: replace ? 1 : 0, trusted_keys: keys,
                    on_progress: { user, done, total in
                        Unmanaged<UnpackListener>.fromOpaque(user!).takeUnretainedValue().body?(done, total) == true ? 1 : 0
                    },
                    user: Unmanaged.passUnretained(listener).toOpaque()
                )
                try verb { zo_bundle_unpack(from, target, &options, $0) }
            }
        }
    }
}

private final class UnpackListener {
    let body: ((UInt64, UInt64) -> Bool)?

    init(_ body: ((UInt64, UInt64) -> Bool)?) {
        self.body = body
    }
}
