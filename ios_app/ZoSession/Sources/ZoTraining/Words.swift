import Foundation
import ZoSession

// What the screens say.

extension TrainingView.Phase {
    public var title: String {
        switch self {
        case .idle: "Ready"
        case .running: "Training"
        case .paused(.asked): "Paused"
        case .paused(.heat): "Paused: the device is too warm"
        case .paused(.disk): "Paused: the disk is full"
        case .failed(let problem): problem.kind.title
        case .done: "Done"
        }
    }

    /// What is wrong and what to do; nil where nothing is.
    public var detail: String? {
        if case .failed(let problem) = self { problem.error.description } else { nil }
    }
}

extension Problem.Kind {
    public var title: String {
        switch self {
        case .badBundle: "This bundle cannot be used"
        case .badData: "These examples cannot be used"
        case .lowDisk: "The disk is full"
        case .badState: "What was trained before cannot be gone on with"
        case .diverged: "The loss has grown: lower the learning rate"
        case .engine: "The device could not run the bundle"
        case .other: "Training failed"
        }
    }
}

extension Heat {
    public var title: String {
        switch self {
        case .nominal: "normal"
        case .fair: "warm"
        case .serious: "hot"
        case .critical: "too hot"
        }
    }
}

/// An example that was typed.
public struct TypedExample: Identifiable, Sendable {
    public let id = UUID()
    public var prompt = ""
    public var completion = ""

    public init() {}

    public var isComplete: Bool { !completion.isEmpty }

    /// The complete ones as JSON Lines.
    public static func lines(_ examples: [TypedExample]) throws -> Data {
        var lines = Data()
        for example in examples where example.isComplete {
            let object = ["prompt": example.prompt, "completion": example.completion]
            lines += try JSONSerialization.data(withJSONObject: object, options: .sortedKeys) + Data("\n".utf8)
        }
        return lines
    }
}
