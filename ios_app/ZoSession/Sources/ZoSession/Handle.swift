import Foundation

/// A handle of the library: one caller at a time, none after `close`, none from within a call. Freed at the latest
/// with its last reference.
final class Handle: @unchecked Sendable {
    private let lock = NSRecursiveLock()
    /// Held while the address goes, and by what need not wait for the call that runs.
    private let gate = NSLock()
    private var busy = false
    private var address: OpaquePointer?
    private let what: String
    private let free: (OpaquePointer) -> Void

    /// - Parameters:
    ///   - what: what it is of, for messages.
    ///   - free: frees it; what this holds lives as long as the handle.
    init(_ address: OpaquePointer, what: String, free: @escaping (OpaquePointer) -> Void) {
        self.address = address
        self.what = what
        self.free = free
    }

    deinit {
        address.map(free)
    }

    /// Runs `action` with the address, which it must not keep.
    func call<Result>(_ action: (OpaquePointer) throws -> Result) throws -> Result {
        try alone {
            guard let address else {
                throw ZoError(
                    .invalidArgument, where: what, found: "a call after close", expected: "an open one",
                    fix: "Open another one."
                )
            }
            return try action(address)
        }
    }

    /// Runs a quick `action` beside the call that runs; nil, and nothing, after `close`.
    @discardableResult
    func beside<Result>(_ action: (OpaquePointer) throws -> Result) rethrows -> Result? {
        gate.lock()
        defer { gate.unlock() }
        return try address.map(action)
    }

    /// Waits for a call that runs, then frees the handle. Closing twice is allowed.
    func close() throws {
        try alone {
            let freed = address
            gate.lock()
            address = nil
            gate.unlock()
            freed.map(free)
        }
    }

    private func alone<Result>(_ action: () throws -> Result) throws -> Result {
        lock.lock()
        defer { lock.unlock() }
        // The lock lets its own thread in again: a progress callback could close the session that runs it.
        if busy {
            throw ZoError(
                .invalidArgument, where: what, found: "a call from within a call", expected: "one call at a time",
                fix: "Let the progress callback return first."
            )
        }
        busy = true
        defer { busy = false }
        return try action()
    }
}
