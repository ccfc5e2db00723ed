import ZoSession

/// What the screens show of a run.
public struct TrainingView: Equatable, Sendable {
    public enum Phase: Equatable, Sendable {
        case idle
        case running
        /// Saved; it goes on where it was.
        case paused(Reason)
        case failed(Problem)
        case done
    }

    /// Why a run waits.
    public enum Reason: Equatable, Sendable {
        /// The user, or the system that takes the time back.
        case asked
        /// It goes on by itself when the device has cooled.
        case heat
        /// It goes on by itself when there is room.
        case disk
    }

    public struct Point: Equatable, Sendable {
        public let step: UInt64
        public let loss: Double
    }

    public internal(set) var phase = Phase.idle
    public internal(set) var request: RunRequest?
    public internal(set) var method = ""
    public internal(set) var engine = ""
    public internal(set) var examples = 0
    /// Examples that did not fit into the bundle's rows as they are.
    public internal(set) var shortened = 0
    public internal(set) var step: UInt64 = 0
    /// The losses of all steps, those before a resume included.
    public internal(set) var points: [Point] = []
    public internal(set) var stepSeconds: Double?
    public internal(set) var memoryBytes: UInt64 = 0
    public internal(set) var heat = Heat.nominal

    public var canStart: Bool { request != nil && phase != .running }
    public var canPause: Bool { phase == .running }
    public var canCancel: Bool {
        switch phase {
        case .running, .paused: true
        case .idle, .failed, .done: false
        }
    }
}

/// Why a run ended: for the user, in the four parts of a `ZoError`.
public struct Problem: Error, Equatable, Sendable {
    public enum Kind: Sendable {
        case badBundle, badData, lowDisk, badState, diverged, engine, other
    }

    public let kind: Kind
    public let error: ZoError

    init(_ error: any Error) {
        self.error = (error as? ZoError) ?? ZoError(
            .internal, where: "training", found: error.localizedDescription, expected: "a run without errors",
            fix: "Start it again."
        )
        switch (error as? ZoError)?.kind {
        case .bundle: kind = .badBundle
        case .data: kind = .badData
        case .state: kind = .badState
        case .diverged: kind = .diverged
        case .engine: kind = .engine
        case .invalidArgument, .cancelled, .internal, nil: kind = .other
        }
    }

    init(_ kind: Kind, _ error: ZoError) {
        self.kind = kind
        self.error = error
    }
}
