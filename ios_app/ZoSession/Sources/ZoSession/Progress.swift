import Foundation

extension TrainingSession {
    /// Trains in a thread of its own until the run has `totalSteps` steps in total, and saves; a value for every step.
    ///
    /// Cancelling the task that reads the values, or leaving its loop, ends the run after the step that is being taken,
    /// saved. Then nothing more comes from here; `close` waits until the run has ended. Calling this again goes on.
    ///
    ///     for try await step in session.steps(of: dataset, totalSteps: 100) { show(step.loss) }
    ///
    /// Its errors are those of `train`; `cancel` ends it with a `ZoError` of kind `cancelled`.
    public func steps(of dataset: Dataset, totalSteps: UInt64) -> AsyncThrowingStream<StepProgress, any Error> {
        AsyncThrowingStream { continuation in
            let left = Flag()
            continuation.onTermination = { reason in
                if case .cancelled = reason { left.raise() }
            }
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

/// Raised once, by any thread.
private final class Flag: @unchecked Sendable {
    private let lock = NSLock()
    private var raised = false

    var isRaised: Bool { lock.withLock { raised } }

    func raise() { lock.withLock { raised = true } }
}
