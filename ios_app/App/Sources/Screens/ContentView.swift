import SwiftUI
import ZoSession
import ZoTraining

/// Choosing, the run, and what came of it.
struct ContentView: View {
    @Environment(AppModel.self) private var model

    var body: some View {
        TabView {
            NavigationStack { ChooseView().navigationTitle("Choose") }
                .tabItem { Label("Choose", systemImage: "tray.and.arrow.down") }
            NavigationStack { RunView().navigationTitle("Train") }
                .tabItem { Label("Train", systemImage: "chart.xyaxis.line") }
            NavigationStack { TryView().navigationTitle("Try it") }
                .tabItem { Label("Try it", systemImage: "text.bubble") }
        }
        .alert(
            "zoexport", isPresented: .init(get: { model.message != nil }, set: { if !$0 { model.message = nil } }),
            actions: { Button("OK") {} }, message: { Text(model.message ?? "") }
        )
    }
}
