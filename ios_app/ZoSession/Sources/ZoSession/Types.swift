import CZoexport

/// A bundle and its state (`zo_session_info`).
public struct SessionInfo: Decodable, Sendable {
    public let bundleId, method, target, engine: String
    public let rows, maxLength, copies, numQueries, maxLabels: Int
    public let seed, steps: UInt64
    public let adapters: [String]
}

/// A state tensor of the manifest. A uint8 tensor that is trained has two integers of 4 bits in an element.
public struct SlotInfo: Decodable, Sendable {
    public let name, role, module: String
    public let tensorId: UInt32
    public let shape: [Int]
    public let dtype: Tensor.DType

    public var elements: Int { shape.reduce(1, *) }
}

/// One step (`zo_step`): `losses[2i]` and `losses[2i+1]` are those of +z_i and -z_i, `loss` their mean.
public struct StepResult: Sendable {
    public let step: UInt64
    public let loss, learningRate, seconds: Double
    public let losses: [Double]
    public let gradients: [Float]

    init(_ step: zo_step) {
        (self.step, loss, learningRate, seconds) = (step.step, step.loss, step.learning_rate, step.seconds)
        losses = Array(UnsafeBufferPointer(start: step.losses, count: step.loss_count))
        gradients = Array(UnsafeBufferPointer(start: step.gradients, count: step.gradient_count))
    }
}

/// The step just taken, of `total` (`zo_progress`). Memory is 0 if it is not known.
public struct StepProgress: Sendable {
    public let step, total: UInt64
    public let loss, learningRate, seconds: Double
    public let rssBytes, anonymousBytes: UInt64

    init(_ now: zo_progress) {
        (step, total, loss, learningRate, seconds) = (now.step, now.total, now.loss, now.learning_rate, now.seconds)
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
    public let learningRate, eps, loss: Float
    public let gradients: [Float]
}

/// A folder for PEFT or a file for llama.cpp, and the numbers of that file.
public enum AdapterFormat: String, Codable, Sendable { case peft, gguf }
public enum Outtype: String, Codable, Sendable { case f32, f16, q8_0 }

/// Options for generating, of the kind `generate` (docs/export.md); nil: the library's default.
public struct GenerateOptions: Encodable, Sendable {
    var prompt: String?
    var messages: [Message]?
    public var stop: [String]?
    public var adapter: String?
    public var temperature, topP, minP, repetitionPenalty: Double?
    public var maxNewTokens, topK: UInt32?
    public var seed: UInt64?
    public var untrained, keep, sliding: Bool?

    public init() {}
}

/// Text up to a stop string, and its tokens with those of that string, without a stop token.
public struct Generation: Decodable, Sendable {
    private enum CodingKeys: CodingKey {
        case text, stop, promptTokens, prefillSeconds, decodeSeconds, anonymousBytes, keptTokens
    }
    public enum Stop: String, Decodable, Sendable { case eos, length, caller, string }

    public let text: String
    public internal(set) var tokens: [Int64] = []
    public let stop: Stop
    /// `keptTokens` of the prompt had been read by an earlier call; memory is 0 if it is not known.
    public let promptTokens, keptTokens, anonymousBytes: UInt64
    public let prefillSeconds, decodeSeconds: Double
}

/// Settings of a run by key, such as "learning_rate" or "dpo.beta" (graphs/schema/settings.schema.json).
public typealias Settings = [String: Setting]

/// The value of a setting, usually a literal: `["learning_rate": 1e-3, "batch_size": 4, "pack": true]`.
public struct Setting: Codable, Hashable, Sendable {
    public typealias Value = Codable & Hashable & Sendable

    public let value: any Value

    public init(_ value: any Value) { self.value = value }

    public var double: Double? { value as? Double ?? integer.map { Double($0) } }
    public var integer: UInt64? { (value as? any BinaryInteger).flatMap { UInt64(exactly: $0) } }
    public var string: String? { value as? String }

    public init(from decoder: any Decoder) throws {
        let container = try decoder.singleValueContainer()
        let types: [any Value.Type] = [Bool.self, UInt64.self, Double.self, String.self, [Setting].self, Settings.self]
        let found = types.lazy.compactMap { try? container.decode($0) as any Value }.first
        value = try found ?? container.decode(Bool?.self)  // null
    }

    public func encode(to encoder: any Encoder) throws {
        var container = encoder.singleValueContainer()
        try container.encode(value)
    }

    /// Compares numbers by value, regardless of their types.
    public static func == (left: Setting, right: Setting) -> Bool { AnyHashable(left.value) == AnyHashable(right.value) }
    public func hash(into hasher: inout Hasher) { AnyHashable(value).hash(into: &hasher) }
}

extension Setting: ExpressibleByBooleanLiteral, ExpressibleByIntegerLiteral, ExpressibleByFloatLiteral,
    ExpressibleByStringLiteral
{
    public init(booleanLiteral value: Bool) { self.init(value) }
    public init(integerLiteral value: UInt64) { self.init(value) }
    public init(floatLiteral value: Double) { self.init(value) }
    public init(stringLiteral value: String) { self.init(value) }
}
