import Foundation
import ZoSession

/// The part of a bundle's manifest (docs/formats.md) that the engine needs.
struct BundleManifest: Decodable {
    struct Program: Decodable {
        let name: String
        /// The specification inside the package.
        let file: String
        /// The function.
        let entryPoint: String
        let inputs, outputs: [Value]

        /// The .mlpackage that `file` is in.
        var package: String? {
            let parts = file.split(separator: "/")
            return parts.firstIndex { $0.hasSuffix(".mlpackage") }.map { parts[...$0].joined(separator: "/") }
        }
    }

    struct Value: Decodable {
        let name, dtype: String
        let shape: [Size]
    }

    /// A number, or the least and the largest one.
    enum Size: Decodable, Equatable {
        case fixed(Int)
        case range(ClosedRange<Int>)

        private enum Key: CodingKey { case min, max }

        init(from decoder: any Decoder) throws {
            if let number = try? decoder.singleValueContainer().decode(Int.self) {
                self = .fixed(number)
            } else {
                let sizes = try decoder.container(keyedBy: Key.self)
                let least = try sizes.decode(Int.self, forKey: .min)
                self = .range(least...max(least, try sizes.decode(Int.self, forKey: .max)))
            }
        }
    }

    struct Generate: Decodable {
        /// nil if the bundle generates nothing.
        let programs: [Program]?
    }

    let bundleId, engine: String
    let programs: [Program]
    let generate: Generate?

    /// Programs that train, and those that generate.
    var everyProgram: [Program] { programs + (generate?.programs ?? []) }

    /// - Throws: `ZoError` of kind `bundle`: no manifest, or an altered one.
    static func read(_ bundle: URL) throws -> BundleManifest { try manifest(of: bundle) }
}
