import SwiftUI
import UIKit
import ZoSession

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
            case .inactive: delegate.cover()
            case .background: delegate.leave()
            case .active: delegate.comeBack()
            @unknown default: break
            }
        }
    }
}

@MainActor
final class AppDelegate: NSObject, UIApplicationDelegate {
    /// The system gives every app its documents.
    let model = try! AppModel()
    private lazy var background = BackgroundTraining(model)

    func application(
        _ application: UIApplication,
        didFinishLaunchingWithOptions options: [UIApplication.LaunchOptionsKey: Any]? = nil
    ) -> Bool {
        // Before this returns, or the system refuses it.
        background.register()
        model.onBegun = { [weak self] in self?.background.continueRun() }
        return true
    }

    /// The system asks for memory: training is what can be given up.
    func applicationDidReceiveMemoryWarning(_ application: UIApplication) {
        model.pause(.memory)
    }

    /// MLX dies where it asks for the GPU in the background, and a step may be under way when the app gets there.
    func cover() {
        if model.absence.cover(isActive: model.screen.isActive, needsForeground: model.needsForeground) {
            model.pause(.background)
        }
    }

    /// Saves the run that is under way, unless it may go on, and asks the system for time to go on with it.
    func leave() {
        guard model.absence.leave(isActive: model.screen.isActive) else { return }
        background.schedule()
        let application = UIApplication.shared
        var task = UIBackgroundTaskIdentifier.invalid
        let end = {
            application.endBackgroundTask(task)
            task = .invalid
        }
        task = application.beginBackgroundTask(expirationHandler: end)
        model.pause(.background)
        Task {
            await model.finished()
            if task != .invalid { end() }
        }
    }

    func comeBack() {
        Task {
            await model.finished()
            if model.absence.comeBack(reason: model.screen.view.reason) { model.resume() }
        }
    }
}
