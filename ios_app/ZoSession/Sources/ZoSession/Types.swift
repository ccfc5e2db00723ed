import CZoexport

// What the session takes and returns; the fields are those of session.h.

/// What a bundle and its state say of themselves.
public struct SessionInfo: Sendable {
    /// 64 hexadecimal digits.
    public let bundleID: String
    public let method: String
    public let target: String
    public let engine: String
    public let rows: Int
    public let seqLen: Int
    public let copies: Int
    public let queries: Int
    public let maxLabels: Int
    public let seed: UInt64
    /// Steps taken in total.
    public let steps: UInt64
    /// The file that packed weights are mapped from; empty where there is none.
    public let packedWeights: String
    /// Why there is no such file; empty where there is one, or none was asked for.
    public let packedProblem: String

    init(_ info: zo_info) {
        bundleID = String(cString: info.bundle_id)
        method = String(cString: info.method)
        target = String(cString: info.target)
        engine = String(cString: info.engine)
        rows = Int(info.rows)
        seqLen = Int(info.seq_len)
        copies = Int(info.copies)
        queries = Int(info.queries)
        maxLabels = Int(info.max_labels)
        seed = info.seed
        steps = info.steps
        packedWeights = String(cString: info.packed_weights)
        packedProblem = String(cString: info.packed_problem)
    }
}

/// A state slot of the manifest.
public struct SlotInfo: Sendable {
    public let name: String
    public let role: String
    public let module: String
    public let tensorID: UInt32
    public let shape: [Int]
    public let elements: Int
    /// Of uint8, an element is two integers of four bits.
    public let dtype: Tensor.DType

    /// The size of its values.
    public var bytes: Int { elements * dtype.size }

    init(_ slot: zo_slot_info) {
        name = String(cString: slot.name)
        role = String(cString: slot.role)
        module = String(cString: slot.module)
        tensorID = slot.tensor_id
        shape = UnsafeBufferPointer(start: slot.shape, count: Int(slot.rank)).map(Int.init)
        elements = Int(slot.elements)
        dtype = Tensor.DType(rawValue: slot.dtype)!
    }
}

/// How the learning rate goes over the steps of a run.
public enum Schedule: Int32, Sendable {
    case constant, linear, cosine
}

/// What is minimized.
public enum Loss: Int32, Sendable {
    case full, choices, dpo, orpo
}

/// What choices are compared by: the sum or the mean of their tokens' log-probabilities.
public enum Choices: Int32, Sendable {
    case sum, mean
}

/// How a run trains.
public struct Run: Equatable, Sendable {
    public var schedule: Schedule
    public var loss: Loss
    public var batch: UInt32
    public var accumulate: UInt32
    public var lr: Double
    public var eps: Double
    public var seed: UInt64
    /// The schedule's length for `TrainingSession.step`.
    public var totalSteps: UInt64
    /// Of first-order methods, as are the next three: SGD's.
    public var momentum: Double
    public var weightDecay: Double
    /// The largest norm of an update's gradient; 0: any.
    public var clip: Double
    /// Stages from one kept activation to the next.
    public var checkpointEvery: UInt32
    /// Of zeroth-order methods: `ZO_DIFFERENCE_CENTRAL` or `ZO_DIFFERENCE_FORWARD`.
    public var difference: Int32
    /// Steps over which the rate rises.
    public var warmup: UInt32
    /// Of the loss `dpo`: how much a log-ratio to the reference model counts.
    public var dpoBeta: Double
    /// Of the loss `orpo`: the weight of the odds ratio.
    public var orpoBeta: Double
    /// Of the loss `choices`.
    public var choices: Choices
    /// Whether texts fill rows, as `Dataset.read` reads them.
    public var pack: Bool
    /// Of first-order methods: most megabytes of products' results that the backward pass need not compute again.
    public var keepMB: UInt32
    /// Most megabytes of rows as they leave the layers below the first that is trained.
    public var cachePrefixMB: UInt32

    init(_ run: zo_run) {
        schedule = Schedule(rawValue: run.schedule)!
        loss = Loss(rawValue: run.loss)!
        batch = run.batch
        accumulate = run.accumulate
        lr = run.lr
        eps = run.eps
        seed = run.seed
        totalSteps = run.total_steps
        momentum = run.momentum
        weightDecay = run.weight_decay
        clip = run.clip
        checkpointEvery = run.checkpoint_every
        difference = run.difference
        warmup = run.warmup
        dpoBeta = run.dpo_beta
        orpoBeta = run.orpo_beta
        choices = Choices(rawValue: run.choices)!
        pack = run.pack != 0
        keepMB = run.keep_mb
        cachePrefixMB = run.cache_prefix_mb
    }

    var c: zo_run {
        zo_run(
            struct_size: UInt32(MemoryLayout<zo_run>.size), schedule: schedule.rawValue, loss: loss.rawValue,
            batch: batch, accumulate: accumulate, lr: lr, eps: eps, seed: seed, total_steps: totalSteps,
            momentum: momentum, weight_decay: weightDecay, clip: clip, checkpoint_every: checkpointEvery,
            reserved: 0, difference: difference, reserved_too: 0, warmup: warmup, reserved_three: 0, dpo_beta: dpoBeta,
            orpo_beta: orpoBeta, choices: choices.rawValue, pack: pack ? 1 : 0,
            keep_mb: keepMB, cache_prefix_mb: cachePrefixMB
        )
    }
}

/// One step: `losses[2i]` and `losses[2i+1]` are those of +z_i and -z_i, `loss` their mean.
public struct StepResult: Sendable {
    public let step: UInt64
    public let loss: Double
    public let lr: Double
    public let seconds: Double
    public let losses: [Double]
    public let gradients: [Float]

    init(_ step: zo_step) {
        self.step = step.step
        loss = step.loss
        lr = step.lr
        seconds = step.seconds
        losses = Array(UnsafeBufferPointer(start: step.losses, count: step.loss_count))
        gradients = Array(UnsafeBufferPointer(start: step.gradients, count: step.gradient_count))
    }
}

/// The step just taken, of `total`. Memory is 0 where the system does not say.
public struct StepProgress: Sendable {
    public let step: UInt64
    public let total: UInt64
    public let loss: Double
    public let lr: Double
    public let seconds: Double
    public let rssBytes: UInt64
    public let anonymousBytes: UInt64

    init(_ progress: zo_progress) {
        step = progress.step
        total = progress.total
        loss = progress.loss
        lr = progress.lr
        seconds = progress.seconds
        rssBytes = progress.rss_bytes
        anonymousBytes = progress.anonymous_bytes
    }
}

public struct Evaluation: Sendable {
    public let loss: Double
    /// nil where no example has choices.
    public let accuracy: Double?
    public let tokenAccuracy: Double
    public let examples: UInt64
    /// The mean of by how much the chosen answer is preferred; nil but for the losses of pairs.
    public let margin: Double?

    init(_ evaluation: zo_evaluation) {
        loss = evaluation.loss
        accuracy = evaluation.accuracy.isNaN ? nil : evaluation.accuracy
        tokenAccuracy = evaluation.token_accuracy
        examples = evaluation.examples
        margin = evaluation.margin.isNaN ? nil : evaluation.margin
    }
}

/// An evaluation of held-out examples.
public struct StepEvaluation: Equatable, Sendable {
    /// Steps that were taken before.
    public let step: UInt64
    public let loss: Double
    /// nil where no example has choices.
    public let accuracy: Double?
    public let tokenAccuracy: Double
    /// Its loss is the lowest of the run so far, step 0 apart.
    public let isBest: Bool

    init(_ evaluated: zo_evaluated) {
        step = evaluated.step
        loss = evaluated.loss
        accuracy = evaluated.accuracy.isNaN ? nil : evaluated.accuracy
        tokenAccuracy = evaluated.token_accuracy
        isBest = evaluated.best != 0
    }
}

/// A record of the trajectory log.
public struct TrajectoryRecord: Sendable {
    public let step: UInt64
    public let lr: Float
    public let eps: Float
    public let loss: Float
    public let gradients: [Float]
}
