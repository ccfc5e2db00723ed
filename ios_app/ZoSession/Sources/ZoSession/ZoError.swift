import CZoexport

/// A failure of the session: what is at fault, what is there, what should be there, what to do.
public struct ZoError: Error, Equatable, CustomStringConvertible {
    /// The statuses of `session.h`, by number.
    public enum Kind: Int32, Sendable {
        /// A call or a setting that cannot be used.
        case invalidArgument = 1
        /// A bundle that is missing, altered, or of another version.
        case bundle
        /// A state that is missing, damaged, locked, full, or of another bundle.
        case state
        /// Examples that cannot be used.
        case data
        /// A program that could not be loaded or run.
        case engine
        /// The loss left its range; the last good state is kept.
        case diverged
        /// The progress callback asked to stop; what was reached is saved.
        case cancelled
        /// A defect or exhausted memory.
        case `internal`
        /// Of a job: the person has to say which of two things is meant.
        case question
    }

    public let kind: Kind
    public let `where`: String
    public let found: String
    public let expected: String
    public let fix: String

    public var description: String { "\(`where`): found \(found); expected \(expected). \(fix)" }

    package init(_ kind: Kind, where place: String, found: String, expected: String, fix: String) {
        self.kind = kind
        self.where = place
        self.found = found
        self.expected = expected
        self.fix = fix
    }

    init(_ error: zo_error) {
        self.init(
            Kind(rawValue: error.code) ?? .internal,
            where: text(error.where), found: text(error.found), expected: text(error.expected), fix: text(error.fix)
        )
    }
}

/// A character array of C, which Swift sees as a tuple.
func text<Characters>(_ characters: Characters) -> String {
    withUnsafeBytes(of: characters) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
}

/// Calls a verb of the C ABI, and throws its error.
func verb(_ body: (UnsafeMutablePointer<zo_error>) -> zo_status) throws {
    var error = zo_error()
    let status = withUnsafeMutablePointer(to: &error, body)
    if status != 0 {
        throw ZoError(error)
    }
}

/// A struct of the C ABI with its size, with which each begins.
func sized<Struct>(_ empty: Struct) -> Struct {
    var result = empty
    withUnsafeMutableBytes(of: &result) { $0.storeBytes(of: UInt32(MemoryLayout<Struct>.size), as: UInt32.self) }
    return result
}

/// Refuses a library of another version than the header that this was compiled with.
func checkVersion() throws {
    if zo_abi_version() != ZO_ABI_VERSION {
        throw ZoError(
            .internal, where: "libzoexport", found: "version \(zo_abi_version()) of its interface",
            expected: "version \(ZO_ABI_VERSION)", fix: "Build the app again."
        )
    }
}

/// A path or name as the library takes it: it would end at a zero character.
func checked(_ text: String, _ place: String) throws -> String {
    if text.utf8.contains(0) {
        throw ZoError(
            .invalidArgument, where: place, found: "a zero character", expected: "text without one",
            fix: "Correct the name."
        )
    }
    return text
}
