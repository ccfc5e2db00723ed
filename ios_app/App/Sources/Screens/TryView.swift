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
                    LabeledContent("Trained") { Text(exchange.trained).textSelection(.enabled) }
                    LabeledContent("Untrained") { Text(exchange.untrained).textSelection(.enabled) }
                }
            }
            Section {
                TextField("Your question", text: $question, axis: .vertical)
                Button("Ask") { ask() }.disabled(question.isEmpty)
                Button("New conversation") { model.hush() }.disabled(model.screen.talk.isEmpty)
            }
            .disabled(isAsking || model.screen.isActive)
            Section {
                Button("Export for PEFT") { share(.peft) }
                Button("Export for llama.cpp") { share(.gguf) }
                if let shared { ShareLink("Share the adapter", item: shared) }
            } footer: {
                Text("Anyone with the adapter can recover what it learned from your examples.")
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
