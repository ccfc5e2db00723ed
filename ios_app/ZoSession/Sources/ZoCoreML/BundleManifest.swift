import Foundation
import ZoSession

/// What the engine reads of a bundle's manifest.json (docs/bundle.md).
struct BundleManifest: Decodable {
    struct Program: Decodable {
        let name: String
        /// The specification inside the package.
        let file: String
        /// The function.
        let method: String
        let inputs: [Value]
        let outputs: [Value]

        /// The .mlpackage that `file` is in.
        var package: String? {
            let parts = file.split(separator: "/")
            return parts.firstIndex { $0.hasSuffix(".mlpackage") }.map { parts[...$0].joined(separator: "/") }
        }
    }

    struct Value: Decodable {
        let name: String
        let dtype: String
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
        /// Missing where the bundle has none.
        let programs: [Program]?
    }

    let bundleId: String
    let engine: String
    let programs: [Program]
    let generate: Generate?

    /// Those that train, and those that generate.
    var everyProgram: [Program] { programs + (generate?.programs ?? []) }

    /// - Throws: `ZoError` of kind `bundle`: no manifest, or another one.
    static func read(_ bundle: URL) throws -> BundleManifest {
        let file = bundle.appendingPathComponent("manifest.json")
        let decoder = JSONDecoder()
        decoder.keyDecodingStrategy = .convertFromSnakeCase
        do {
            return try decoder.decode(BundleManifest.self, from: Data(contentsOf: file))
        } catch let error as DecodingError {
            throw ZoError(
                .bundle, where: file.path, found: "\(error)", expected: "a manifest of docs/bundle.md",
                fix: "Copy the bundle again, or compile it again."
            )
        } catch {
            throw ZoError(
                .bundle, where: bundle.path, found: "no manifest that can be read (\(error.localizedDescription))",
                expected: "a bundle folder", fix: "Check the path, or copy the bundle again."
            )
        }
    }
}
