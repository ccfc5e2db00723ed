import CZoexport

/// A failure of the session.
public struct ZoError: Error, Equatable, CustomStringConvertible {
    /// The statuses of `session.h` by number, which explains them.
    public enum Kind: Int32, Sendable {
        case invalidArgument = 1, bundle, state, data, engine, diverged, cancelled, `internal`, question
    }

    public let kind: Kind
    public let `where`, found, expected, fix: String

    public var description: String { "\(`where`): found \(found); expected \(expected). \(fix)" }

    package init(_ kind: Kind, where place: String, found: String, expected: String, fix: String) {
        (self.kind, self.where, self.found, self.expected, self.fix) = (kind, place, found, expected, fix)
    }

    init(_ error: zo_error) {
        // Swift sees arrays of C as tuples.
        func text<Characters>(_ characters: Characters) -> String {
            withUnsafeBytes(of: characters) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
        }
        self.init(
            Kind(rawValue: error.code) ?? .internal,
            where: text(error.where), found: text(error.found), expected: text(error.expected), fix: text(error.fix)
        )
    }
}
