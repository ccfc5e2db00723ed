import SwiftUI
import ZoSession

/// Examples typed by hand, kept as a data file.
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
                        TextField("Prompt", text: $example.prompt, axis: .vertical)
                        TextField("Completion", text: $example.completion, axis: .vertical)
                    }
                }
                Button("One more") { examples.append(TypedExample()) }
            }
            .toolbar {
                ToolbarItem(placement: .cancellationAction) { Button("Cancel") { dismiss() } }
                ToolbarItem(placement: .confirmationAction) {
                    Button("Keep") {
                        model.write(examples, as: name)
                        dismiss()
                    }
                    .disabled(name.isEmpty || name.contains("/") || examples.contains { $0.completion.isEmpty })
                }
            }
        }
    }
}
