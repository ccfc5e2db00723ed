import SwiftUI
import ZoSession

/// A conversation with what was trained and without, and the adapter to share.
struct TryView: View {
    @Environment(AppModel.self) private var model
    @State private var question = ""
    @State private var isAsking = false
    @State private var shared: URL?

    var body: some View {
        Form {
            ForEach(model.screen.talk) { exchange in
                Section(exchange.question) {
                    LabeledContent("With what was trained") { Text(exchange.trained).textSelection(.enabled) }
                    LabeledContent("Without it") { Text(exchange.untrained).textSelection(.enabled) }
                }
            }
            Section {
                TextField("What the model is asked", text: $question, axis: .vertical)
                Button("Ask") { ask() }.disabled(question.isEmpty)
                Button("New conversation") { model.hush() }.disabled(model.screen.talk.isEmpty)
            }
            .disabled(isAsking || model.screen.isActive)
            Section {
                Button("Make PEFT’s files") { share(.peft) }
                Button("Make llama.cpp’s file") { share(.gguf) }
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
            if await model.ask(question) { question = "" }
            isAsking = false
        }
    }

    private func share(_ format: AdapterFormat) {
        Task { shared = await model.adapter(format) }
    }
}
