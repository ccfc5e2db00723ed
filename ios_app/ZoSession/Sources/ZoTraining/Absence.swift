import ZoSession

/// Decides about a run when the person leaves the app, comes back, or the system takes back the time that it gave.
public struct Absence: Sendable {
    /// True if the system lets the run go on in the background.
    public var isContinued = false
    /// True if it was paused for the absence, and for nothing else.
    private var isPaused = false

    public init() {}

    /// The app is covered.
    ///
    /// - Parameter needsForeground: what trains must not compute from now on.
    /// - Returns: whether the run is to be paused.
    public mutating func cover(isActive: Bool, needsForeground: Bool) -> Bool {
        pause(isActive && needsForeground)
    }

    /// The person has left the app. Returns whether the run is to be paused.
    public mutating func leave(isActive: Bool) -> Bool {
        pause(isActive && !isContinued)
    }

    /// The person is back. Returns whether the run, which has stopped for `reason`, goes on.
    public mutating func comeBack(reason: Reason) -> Bool {
        defer { isPaused = false }
        return isPaused && reason == .background
    }

    /// The system's time is over, or the person has ended the run where the system shows it; of the two the app is not told which.
    /// So the run, which is to be paused, does not go on by itself.
    public mutating func expire() {
        isContinued = false
        isPaused = false
    }

    private mutating func pause(_ pauses: Bool) -> Bool {
        isPaused = isPaused || pauses
        return pauses
    }
}

extension TrainingScreen {
    /// The progress of a run that the system lets continue: steps of all steps.
    public var progress: (completed: Int64, total: Int64) {
        let total = Int64(clamping: max(view.steps, 1))
        return (min(Int64(clamping: view.step), total), total)
    }
}
