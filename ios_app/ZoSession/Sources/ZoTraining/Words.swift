import Foundation
import ZoSession

// Texts of the screens.

extension JobView {
    public var title: String {
        switch phase {
        case .idle: words("Ready")
        case .preparing: words("Preparing")
        case .evaluating: words("Evaluating")
        case .training: words("Training")
        case .failed: words("Failed")
        case .done: words("Done")
        case .waiting, .paused:
            switch reason {
            case .none, .asked: words("Paused")
            case .heat: words("Waiting: the phone is too hot")
            case .battery: words("Waiting: the battery is low")
            case .disk: words("Waiting: storage is full")
            case .memory: words("Paused: memory is low")
            case .background: words("Paused in the background")
            }
        }
    }
}

extension Evaluation {
    public var title: String {
        let told = String(format: words("loss %.3f"), loss ?? .nan)
        return accuracy.map { told + String(format: words(", %.0f %% right"), 100 * $0) } ?? told
    }
}

/// A text in the person's language, by what it is in English.
private func words(_ text: String) -> String { NSLocalizedString(text, comment: "") }
