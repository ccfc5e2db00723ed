import SwiftUI
import UniformTypeIdentifiers
import ZoTraining

/// A bundle, a data file or typed examples, the number of steps and the learning rate.
struct ChooseView: View {
    private enum Picked { case bundle, data }

    @Environment(AppModel.self) private var model
    @State private var bundle: String?
    @State private var data: String?
    @State private var heldOut: String?
    @State private var steps = 100
    @State private var rate: Double?
    @State private var picked = Picked.bundle
    @State private var isPicking = false
    @State private var isTyping = false
    @State private var isDeleting = false

    var body: some View {
        Form {
            Section("Bundle") {
                picker("Bundle", $bundle, of: model.bundles)
                Button("Import a bundle") { pick(.bundle) }
                if let imported = model.imported { ProgressView("Importing", value: imported) }
            }
            Section {
                picker("File", $data, of: model.dataFiles)
                picker("Validation file, which selects the best step", $heldOut, of: model.dataFiles)
                Button("Copy a JSON Lines file into the app") { pick(.data) }
                Button("Type examples") { isTyping = true }
                Button("Delete examples and training", role: .destructive) { isDeleting = true }
            } header: {
                Text("Examples")
            } footer: {
                Text("Your examples stay on this phone. The trained adapter may contain parts of them.")
            }
            Section("Training") {
                Stepper("\(steps.formatted()) steps", value: $steps, in: 10...10_000, step: 10)
                TextField("Learning rate (leave empty for the bundle’s)", value: $rate, format: .number)
                    .keyboardType(.decimalPad)
            }
            Button("Choose") {
                if let bundle, let data {
                    model.choose(bundle: bundle, data: data, steps: UInt64(steps), learningRate: rate, heldOut: heldOut)
                }
            }
            .disabled(bundle == nil || data == nil || model.screen.isActive)
        }
        .fileImporter(isPresented: $isPicking, allowedContentTypes: picked == .bundle ? [.folder, .data] : [.data]) { result in
            switch result {
            case .success(let url):
                let folder = picked == .bundle ? model.places.bundles : model.places.data
                Task { await model.take(url, into: folder) }
            case .failure(let error): model.message = error.localizedDescription
            }
        }
        .confirmationDialog("Delete examples and training?", isPresented: $isDeleting, titleVisibility: .visible) {
            Button("Delete", role: .destructive) {
                model.forget(data: data)
                data = nil
            }
        }
        .sheet(isPresented: $isTyping) { TypeView() }
        .onAppear { model.look() }
    }

    private func picker(_ title: LocalizedStringKey, _ chosen: Binding<String?>, of names: [String]) -> some View {
        Picker(title, selection: chosen) {
            Text("None").tag(String?.none)
            ForEach(names, id: \.self) { Text($0).tag(String?.some($0)) }
        }
    }

    private func pick(_ what: Picked) {
        picked = what
        isPicking = true
    }
}
