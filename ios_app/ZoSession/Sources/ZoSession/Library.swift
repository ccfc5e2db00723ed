import CZoexport
import Foundation

// Calls of the C ABI: options and results are JSON, and errors are thrown.

/// Receives the error of a verb.
typealias ErrorPointer = UnsafeMutablePointer<zo_error>
/// Receives the JSON of a verb.
typealias JsonPointer = UnsafeMutablePointer<UnsafeMutablePointer<CChar>?>

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
class Callback<Argument>: Box<((Argument) throws -> Bool)?>, @unchecked Sendable {
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
