import BackgroundTasks
import Foundation
import ZoSession

/// Goes on with an unfinished run while the phone charges and nobody uses it.
@MainActor
final class BackgroundTraining {
    /// Listed in Info.plist too (project.yml).
    private static let identifier = "org.zoexport.training"
    private let model: AppModel

    init(_ model: AppModel) {
        self.model = model
    }

    func register() {
        BGTaskScheduler.shared.register(forTaskWithIdentifier: Self.identifier, using: .main) { [weak self] task in
            MainActor.assumeIsolated {
                guard let self, let task = task as? BGProcessingTask else { return task.setTaskCompleted(success: false) }
                self.run(task)
            }
        }
    }

    /// Asks for time, for what may run in the background.
    func schedule() {
        guard !model.needsForeground else { return }
        let request = BGProcessingTaskRequest(identifier: Self.identifier)
        request.requiresExternalPower = true
        request.requiresNetworkConnectivity = false
        do {
            try BGTaskScheduler.shared.submit(request)
        } catch {
            model.message = "No training in the background: \(error.localizedDescription)"
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
