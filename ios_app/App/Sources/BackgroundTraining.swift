import BackgroundTasks
import Foundation
import ZoSession
import ZoTraining

/// Continues a run in the background: as long as the system lets a run that the person started go on, and else while
/// the phone charges and nobody uses it. The identifiers are in Info.plist too (project.yml).
@MainActor
final class BackgroundTraining {
    private static let charging = "org.zoexport.training"
    private let model: AppModel

    init(_ model: AppModel) {
        self.model = model
    }

    func register() {
        BGTaskScheduler.shared.register(forTaskWithIdentifier: Self.charging, using: .main) { [weak self] task in
            MainActor.assumeIsolated {
                guard let self, let task = task as? BGProcessingTask else { return task.setTaskCompleted(success: false) }
                self.run(task)
            }
        }
    }

    /// Asks for time, for what may run in the background.
    func schedule() {
        guard !model.needsForeground else { return }
        let request = BGProcessingTaskRequest(identifier: Self.charging)
        request.requiresExternalPower = true
        request.requiresNetworkConnectivity = false
        do {
            try BGTaskScheduler.shared.submit(request)
        } catch {
            model.message = String(localized: "No training in the background: \(error.localizedDescription)")
        }
    }

    /// Asks the system to let the run that the person has started go on when the app is left.
    func continueRun() {
        guard #available(iOS 26.0, *), !model.needsForeground, !model.absence.isContinued else { return }
        // A handler may be registered once for an identifier.
        let identifier = "\(Bundle.main.bundleIdentifier!).run.\(UUID().uuidString)"
        BGTaskScheduler.shared.register(forTaskWithIdentifier: identifier, using: .main) { [weak self] task in
            MainActor.assumeIsolated {
                guard let self, let task = task as? BGContinuedProcessingTask else {
                    return task.setTaskCompleted(success: false)
                }
                self.follow(task)
            }
        }
        let request = BGContinuedProcessingTaskRequest(
            identifier: identifier, title: String(localized: "Training"), subtitle: model.screen.view.title
        )
        // If it cannot begin at once, the run is paused when the app is left, and goes on while the phone charges.
        request.strategy = .fail
        try? BGTaskScheduler.shared.submit(request)
    }

    @available(iOS 26.0, *)
    private func follow(_ task: BGContinuedProcessingTask) {
        model.absence.isContinued = true
        task.expirationHandler = { [weak self] in
            Task { @MainActor in self?.model.expire() }
        }
        Task {
            while model.screen.isActive {
                let now = model.screen.progress
                task.progress.totalUnitCount = now.total
                task.progress.completedUnitCount = now.completed
                task.updateTitle(task.title, subtitle: model.screen.view.title)
                try? await Task.sleep(for: .seconds(1))
            }
            await model.finished()
            model.absence.isContinued = false
            task.setTaskCompleted(success: model.screen.view.phase == .done)
        }
    }

    private func run(_ task: BGProcessingTask) {
        guard model.screen.canResume, !model.needsForeground else { return task.setTaskCompleted(success: true) }
        // The system takes the time back: the run ends after its step, saved, and another task goes on with it.
        task.expirationHandler = { [weak self] in
            Task { @MainActor in self?.model.pause(.background) }
        }
        model.resume()
        Task {
            await model.finished()
            if model.screen.canResume { schedule() }
            task.setTaskCompleted(success: model.screen.view.phase == .done)
        }
    }
}
