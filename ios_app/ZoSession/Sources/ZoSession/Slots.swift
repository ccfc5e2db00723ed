import CZoexport

// Values of state slots. float32 and float16 pass as Float: exact when they are read, rounded to nearest when they are
// written. A slot of any type passes as the bytes that it is; one of integers only so.
extension TrainingSession {
    /// A slot's values, row-major.
    ///
    /// - Parameter finished: with the pending update applied, as evaluation and export see it; else as the last step
    ///   evaluated it.
    public func readSlot(_ name: String, finished: Bool = true) throws -> [Float] {
        try fill(name, Float(0), \.elements) { zo_session_read_slot($0, $1, version(finished), $2, $3, $4) }
    }

    /// A slot's values as they lie in memory.
    public func readSlotBytes(_ name: String, finished: Bool = true) throws -> [UInt8] {
        try fill(name, UInt8(0), \.bytes) { zo_session_read_slot_bytes($0, $1, version(finished), $2, $3, $4) }
    }

    /// Replaces a slot's initial value (an imported adapter), before the first step.
    public func writeSlot(_ name: String, _ values: [Float]) throws {
        try pass(name, values) { zo_session_write_slot($0, $1, $2, $3, $4) }
    }

    /// Likewise, as bytes. No value of an int8 slot may be -128.
    public func writeSlotBytes(_ name: String, _ bytes: [UInt8]) throws {
        try pass(name, bytes) { zo_session_write_slot_bytes($0, $1, $2, $3, $4) }
    }

    /// A slot's values, computed again from the initial ones and the first `updates` records alone.
    ///
    /// - Throws: `ZoError` of kind `invalidArgument`: the method is of first order, whose records do not tell how.
    public func replaySlot(_ name: String, updates: UInt64) throws -> [Float] {
        try fill(name, Float(0), \.elements) { zo_session_replay_slot($0, $1, updates, $2, $3, $4) }
    }

    /// Likewise, as bytes.
    public func replaySlotBytes(_ name: String, updates: UInt64) throws -> [UInt8] {
        try fill(name, UInt8(0), \.bytes) { zo_session_replay_slot_bytes($0, $1, updates, $2, $3, $4) }
    }

    /// An array as long as the slot `name`, filled by a verb of the library.
    private func fill<Value>(
        _ name: String, _ zero: Value, _ count: KeyPath<SlotInfo, Int>,
        _ fill: (OpaquePointer, String, UnsafeMutablePointer<Value>, Int, UnsafeMutablePointer<zo_error>) -> zo_status
    ) throws -> [Value] {
        let given = try checked(name, "slot")
        return try handle.call { session in
            // An unknown name goes on with no values: the library says what is wrong with it.
            let count = try readSlots(of: session).first { $0.name == name }?[keyPath: count] ?? 0
            var values = [Value](repeating: zero, count: count + 1)
            try verb { fill(session, given, &values, count, $0) }
            return Array(values.prefix(count))
        }
    }

    private func pass<Value>(
        _ name: String, _ values: [Value],
        _ pass: (OpaquePointer, String, UnsafePointer<Value>?, Int, UnsafeMutablePointer<zo_error>) -> zo_status
    ) throws {
        let given = try checked(name, "slot")
        try handle.call { session in
            try verb { error in
                values.withUnsafeBufferPointer { pass(session, given, $0.baseAddress, values.count, error) }
            }
        }
    }
}

private func version(_ finished: Bool) -> Int32 {
    Int32(finished ? ZO_SLOT_FINISHED : ZO_SLOT_CURRENT)
}
