import CZoexport
import Foundation

// Calls of the C ABI: options and results are JSON, and errors are thrown.

typealias ErrorPointer = UnsafeMutablePointer<zo_error>
typealias JsonPointer = UnsafeMutablePointer<UnsafeMutablePointer<CChar>?>

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
        (kind, `where`) = (Kind(rawValue: error.code) ?? .internal, text(error.where))
        (found, expected, fix) = (text(error.found), text(error.expected), text(error.fix))
    }
}

/// Calls a verb, and throws its error.
func verb(_ body: (ErrorPointer) throws -> zo_status) throws {
    guard zo_abi_version() == ZO_ABI_VERSION else {
        throw ZoError(
            .internal, where: "libzoexport", found: "version \(zo_abi_version()) of its interface",
            expected: "version \(ZO_ABI_VERSION)", fix: "Build the app again."
        )
    }
    var error = zo_error()
    if try withUnsafeMutablePointer(to: &error, body) != 0 { throw ZoError(error) }
}

/// Calls a verb that gives JSON, decodes the result, and frees it.
func result<Value: Decodable>(_ body: (JsonPointer, ErrorPointer) throws -> zo_status) throws -> Value {
    var text: UnsafeMutablePointer<CChar>?
    defer { zo_free(text) }
    try verb { try body(&text, $0) }
    let decoder = JSONDecoder()
    decoder.keyDecodingStrategy = .convertFromSnakeCase
    return try decoder.decode(Value.self, from: Data(bytes: text!, count: strlen(text!)))
}

/// Calls a verb that gives a handle.
func opened(_ body: (UnsafeMutablePointer<OpaquePointer?>, ErrorPointer) throws -> zo_status) throws -> OpaquePointer? {
    var address: OpaquePointer?
    try verb { try body(&address, $0) }
    return address
}

/// Encodes options as a JSON object, without those that are nil.
func json(_ options: [String: (any Setting.Value)?]) throws -> String {
    try json(options.compactMapValues { $0.map(Setting.init) })
}

func json(_ value: some Encodable) throws -> String {
    let encoder = JSONEncoder()
    encoder.keyEncodingStrategy = .convertToSnakeCase
    // The library refuses text in place of a number, and names the option.
    encoder.nonConformingFloatEncodingStrategy = .convertToString(
        positiveInfinity: "infinity", negativeInfinity: "-infinity", nan: "nan"
    )
    return String(decoding: try encoder.encode(value), as: UTF8.self)
}

/// Checks a path or a name, which would end at a zero character in the library.
func checked(_ text: String, _ place: String) throws -> String {
    guard text.utf8.contains(0) else { return text }
    throw ZoError(
        .invalidArgument, where: place, found: "a zero character", expected: "text without one", fix: "Correct the name."
    )
}

/// A value behind the `user` of C callbacks. It must live as long as they are called.
class Box<Value>: @unchecked Sendable {
    let value: Value

    init(_ value: Value) { self.value = value }

    var user: UnsafeMutableRawPointer { Unmanaged.passUnretained(self).toOpaque() }

    static func of(_ user: UnsafeMutableRawPointer?) -> Self { Unmanaged.fromOpaque(user!).takeUnretainedValue() }
}

/// A callback that ends its verb by true or an error, which is thrown when the verb returns, as none crosses C.
final class Callback<Argument>: Box<((Argument) throws -> Bool)?>, @unchecked Sendable {
    private var thrown: (any Error)?

    func call(_ argument: Argument) -> Int32 {
        do {
            return try value?(argument) == true ? 1 : 0
        } catch {
            thrown = error
            return 1
        }
    }

    func during<Success>(_ action: (UnsafeMutableRawPointer) throws -> Success) throws -> Success {
        let result = Result { try withExtendedLifetime(self) { try action(user) } }
        if let thrown { throw thrown }
        return try result.get()
    }
}

/// A handle of the library: one caller at a time, none after `close`, none from within a call. The last reference frees it.
final class Handle: @unchecked Sendable {
    private let lock = NSRecursiveLock()
    private let gate = NSLock()  // guards the address, also for callers that do not wait for the call that runs
    private var busy = false
    private var address: OpaquePointer?
    private let what: String
    private let free: (OpaquePointer) -> Void

    /// - Parameter free: frees the address; all that it holds lives as long as the handle.
    init(_ address: OpaquePointer?, what: String, free: @escaping (OpaquePointer) -> Void) {
        (self.address, self.what, self.free) = (address, what, free)
    }

    deinit { address.map(free) }

    /// Runs `action` with the address, which it must not keep. `beside`: a quick one, during the running call.
    func call<Result>(beside: Bool = false, _ action: (OpaquePointer) throws -> Result) throws -> Result {
        func run() throws -> Result {
            if let address { return try action(address) }
            throw refusal("a call after close", "an open one", "Open another one.")
        }
        return beside ? try gate.withLock(run) : try alone(run)
    }

    func verb(beside: Bool = false, _ body: (OpaquePointer?, ErrorPointer?) throws -> zo_status) throws {
        try call(beside: beside) { address in try ZoSession.verb { try body(address, $0) } }
    }

    func read<Value: Decodable>(
        beside: Bool = false, _ body: (OpaquePointer?, JsonPointer?, ErrorPointer?) throws -> zo_status
    ) throws -> Value {
        try call(beside: beside) { address in try result { try body(address, $0, $1) } }
    }

    /// Waits for a call that runs, then frees the handle. Closing twice is allowed.
    func close() throws {
        try alone {
            var freed: OpaquePointer?
            gate.withLock { swap(&freed, &address) }
            freed.map(free)
        }
    }

    private func alone<Result>(_ action: () throws -> Result) throws -> Result {
        try lock.withLock {
            // The lock lets its own thread in again: a progress callback could close the session that runs it.
            if busy {
                throw refusal("a call from within a call", "one call at a time", "Let the progress callback return first.")
            }
            busy = true
            defer { busy = false }
            return try action()
        }
    }

    private func refusal(_ found: String, _ expected: String, _ fix: String) -> ZoError {
        ZoError(.invalidArgument, where: what, found: found, expected: expected, fix: fix)
    }
}
