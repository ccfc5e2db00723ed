import SwiftUI
import ZoSession

/// A prompt, what the model says with what was trained and without, and the adapter to share.
struct TryView: View {
    @Environment(AppModel.self) private var model
    @State private var prompt = ""
    @State private var trained = ""
    @State private var untrained = ""
    @State private var isAsking = false
    @State private var shared: URL?

    var body: some View {
        Form {
            Section("Prompt") {
                TextField("What the model is asked", text: $prompt, axis: .vertical)
                Button("Answer") { ask() }.disabled(prompt.isEmpty || isAsking || model.screen.isActive)
            }
            Section("With what was trained") { Text(trained) }
            Section("Without it") { Text(untrained) }
            Section {
                Button("Make PEFT’s files") { share(.peft) }
                Button("Make llama.cpp’s file") { share(.gguf(.f16)) }
                if let shared { ShareLink("Share the adapter", item: shared) }
            } footer: {
                Text("Whoever gets the adapter gets what it learned from the examples.")
            }
            .disabled(model.screen.view.step == 0 || model.screen.isActive)
        }
        .onChange(of: model.screen.view.step) { shared = nil }
    }

    private func ask() {
        isAsking = true
        Task {
            trained = await model.ask(prompt, trained: true)
            untrained = await model.ask(prompt, trained: false)
            isAsking = false
        }
    }

    private func share(_ format: AdapterFormat) {
        Task { shared = await model.adapter(format) }
    }
}
