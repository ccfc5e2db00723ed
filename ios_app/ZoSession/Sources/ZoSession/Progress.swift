import Foundation

extension TrainingSession {
    /// Trains in its own thread until the run has `totalSteps` steps in total, and saves; gives a value for every step.
    ///
    /// The run ends after its step, saved, when the task that reads the values is cancelled, or leaves its loop. `close`
    /// waits for that end. A new call continues.
    ///
    ///     for try await step in session.steps(of: dataset, totalSteps: 100) { show(step.loss) }
    ///
    /// Its errors are those of `train`.
    public func steps(of dataset: Dataset, totalSteps: UInt64) -> AsyncThrowingStream<StepProgress, any Error> {
        AsyncThrowingStream { continuation in
            let left = Flag()
            continuation.onTermination = { if case .cancelled = $0 { left.raise() } }
            let thread = Thread {
                do {
                    // A reader may leave before the run begins; `cancel` would not reach it then.
                    if !left.isRaised {
                        try self.train(dataset, totalSteps: totalSteps) { progress in
                            continuation.yield(progress)
                            return left.isRaised
                        }
                    }
                    continuation.finish()
                } catch {
                    continuation.finish(throwing: error)
                }
            }
            // Apple's systems give other threads than the main one 512 KiB.
            thread.stackSize = 8 << 20
            thread.start()
        }
    }
}

/// A flag that any thread raises once.
private final class Flag: @unchecked Sendable {
    private let lock = NSLock()
    private var raised = false

    var isRaised: Bool { lock.withLock { raised } }

    func raise() { lock.withLock { raised = true } }
}
