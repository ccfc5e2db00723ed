import SwiftUI
import UIKit

@main
struct ZoexportApp: App {
    @UIApplicationDelegateAdaptor(AppDelegate.self) private var delegate
    @Environment(\.scenePhase) private var phase

    var body: some Scene {
        WindowGroup {
            ContentView().environment(delegate.model)
        }
        .onChange(of: phase) {
            switch phase {
            // The system stops an app in the background within seconds; the task goes on when the phone charges.
            case .background: delegate.leave()
            case .active: delegate.comeBack()
            default: break
            }
        }
    }
}

@MainActor
final class AppDelegate: NSObject, UIApplicationDelegate {
    let model = AppModel()
    private lazy var background = BackgroundTraining(model)

    func application(
        _ application: UIApplication,
        didFinishLaunchingWithOptions options: [UIApplication.LaunchOptionsKey: Any]? = nil
    ) -> Bool {
        // Before this returns, or the system refuses it.
        background.register()
        return true
    }

    /// Whether a run was under way when the user left.
    private var left = false

    /// Saves the run that is under way, and asks the system for time to go on with it.
    func leave() {
        guard model.hasUnfinishedRun else { return }
        background.schedule()
        guard model.view.phase == .running else { return }
        left = true
        let task = UIApplication.shared.beginBackgroundTask()
        model.pause()
        Task {
            await model.finished()
            UIApplication.shared.endBackgroundTask(task)
        }
    }

    func comeBack() {
        if left, model.hasUnfinishedRun { model.start() }
        left = false
        model.conditionsChanged()
    }
}
