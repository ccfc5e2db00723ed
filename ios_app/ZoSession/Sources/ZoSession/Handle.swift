import CZoexport
import Foundation

/// A handle of the library: one caller at a time, none after `close`, none from within a call. The last reference frees it.
final class Handle: @unchecked Sendable {
    private let lock = NSRecursiveLock()
    /// Guards the address, also for callers that do not wait for the call that runs.
    private let gate = NSLock()
    private var busy = false
    private var address: OpaquePointer?
    private let what: String
    private let free: (OpaquePointer) -> Void

    /// - Parameter free: frees the address; all that it holds lives as long as the handle.
    init(_ address: OpaquePointer?, what: String, free: @escaping (OpaquePointer) -> Void) {
        (self.address, self.what, self.free) = (address, what, free)
    }

    deinit { address.map(free) }

    /// Runs `action` with the address, which it must not keep; a quick one beside the call that runs.
    func call<Result>(beside: Bool = false, _ action: (OpaquePointer) throws -> Result) throws -> Result {
        func run() throws -> Result {
            if let address { return try action(address) }
            throw refusal(found: "a call after close", expected: "an open one", fix: "Open another one.")
        }
        return beside ? try gate.withLock(run) : try alone(run)
    }

    /// Calls a verb without other arguments.
    func verb(beside: Bool = false, _ body: (OpaquePointer?, ErrorPointer?) throws -> zo_status) throws {
        try call(beside: beside) { address in try ZoSession.verb { try body(address, $0) } }
    }

    /// Reads what a verb without other arguments gives as JSON.
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
                throw refusal(
                    found: "a call from within a call", expected: "one call at a time",
                    fix: "Let the progress callback return first."
                )
            }
            busy = true
            defer { busy = false }
            return try action()
        }
    }

    private func refusal(found: String, expected: String, fix: String) -> ZoError {
        ZoError(.invalidArgument, where: what, found: found, expected: expected, fix: fix)
    }
}
