import CZoexport

/// A bundle and its state (`zo_session_info`).
public struct SessionInfo: Decodable, Sendable {
    private enum CodingKeys: String, CodingKey {
        case bundleID = "bundleId", method, target, engine, rows, seqLen, copies, queries, maxLabels, seed, steps
        case packedWeights, packedProblem, adapters
    }

    public let bundleID, method, target, engine: String
    public let rows, seqLen, copies, queries, maxLabels: Int
    public let seed, steps: UInt64
    /// The file that packed weights are mapped from, and why there is none; empty: not known, or not asked for.
    public let packedWeights, packedProblem: String
    /// Names of the loaded adapters.
    public let adapters: [String]
}

/// A state tensor of the manifest.
public struct SlotInfo: Decodable, Sendable {
    private enum CodingKeys: String, CodingKey { case name, role, module, tensorID = "tensorId", shape, dtype }

    public let name, role, module: String
    public let tensorID: UInt32
    public let shape: [Int]
    /// A uint8 tensor that is trained has two integers of 4 bits in an element.
    public let dtype: Tensor.DType

    public var elements: Int { shape.reduce(1, *) }
}

/// One step: `losses[2i]` and `losses[2i+1]` are those of +z_i and -z_i, `loss` their mean.
public struct StepResult: Sendable {
    public let step: UInt64
    public let loss, lr, seconds: Double
    public let losses: [Double]
    public let gradients: [Float]

    init(_ step: zo_step) {
        (self.step, loss, lr, seconds) = (step.step, step.loss, step.lr, step.seconds)
        losses = Array(UnsafeBufferPointer(start: step.losses, count: step.loss_count))
        gradients = Array(UnsafeBufferPointer(start: step.gradients, count: step.gradient_count))
    }
}

/// The step just taken, of `total`. Memory is 0 if it is not known.
public struct StepProgress: Sendable {
    public let step, total: UInt64
    public let loss, lr, seconds: Double
    public let rssBytes, anonymousBytes: UInt64

    init(_ now: zo_progress) {
        (step, total, loss, lr, seconds) = (now.step, now.total, now.loss, now.lr, now.seconds)
        (rssBytes, anonymousBytes) = (now.rss_bytes, now.anonymous_bytes)
    }
}

/// An evaluation of examples. A value is nil if it is not finite; accuracy without choices, margin without pairs.
public struct Evaluation: Decodable, Sendable {
    public let loss, accuracy, tokenAccuracy, margin: Double?
    public let examples: UInt64
}

/// An evaluation of held-out examples after `step` steps. `isBest` is true for the lowest loss, step 0 excepted.
public struct StepEvaluation: Decodable, Equatable, Sendable {
    private enum CodingKeys: String, CodingKey { case step, loss, accuracy, tokenAccuracy, margin, isBest = "best" }

    public let step: UInt64
    public let loss, accuracy, tokenAccuracy, margin: Double?
    public let isBest: Bool
}

/// A record of the trajectory log.
public struct TrajectoryRecord: Sendable {
    public let step: UInt64
    public let lr, eps, loss: Float
    public let gradients: [Float]
}
