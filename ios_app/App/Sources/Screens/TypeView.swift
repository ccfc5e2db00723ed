import SwiftUI
import ZoSession
import ZoTraining

/// Examples typed by hand, prompts with completions or conversations, added to a data file.
struct TypeView: View {
    @Environment(AppModel.self) private var model
    @Environment(\.dismiss) private var dismiss
    @State private var examples = [TypedExample()]
    @State private var name = "typed.jsonl"

    var body: some View {
        NavigationStack {
            Form {
                TextField("File", text: $name)
                ForEach($examples) { $example in
                    Section {
                        if let messages = example.messages {
                            ForEach(messages.indices, id: \.self) { index in
                                let content = Binding {
                                    example.messages?[index].content ?? ""
                                } set: {
                                    example.messages?[index].content = $0
                                }
                                TextField(title(messages[index].role), text: content, axis: .vertical)
                            }
                            Button("Add a turn") { example.addTurn() }
                        } else {
                            TextField("Prompt", text: $example.prompt, axis: .vertical)
                            TextField("Completion", text: $example.completion, axis: .vertical)
                        }
                    }
                }
                Button("Add an example") { examples.append(TypedExample()) }
                Button("Add a conversation") { examples.append(.conversation) }
            }
            .toolbar {
                ToolbarItem(placement: .cancellationAction) { Button("Cancel") { dismiss() } }
                ToolbarItem(placement: .confirmationAction) {
                    Button("Keep") {
                        model.write(filled, as: name)
                        dismiss()
                    }
                    .disabled(name.isEmpty || name.contains("/") || filled.isEmpty || !filled.allSatisfy(\.isComplete))
                }
            }
        }
    }

    private var filled: [TypedExample] { examples.filter { !$0.isBlank } }

    private func title(_ role: String) -> LocalizedStringKey {
        switch role {
        case "system": "System message (may be empty)"
        case "user": "User"
        default: "Assistant"
        }
    }
}
