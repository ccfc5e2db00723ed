import SwiftUI
import UniformTypeIdentifiers
import ZoTraining

/// A bundle, a data file or typed examples, and the number of steps.
struct ChooseView: View {
    private enum Picked { case bundle, data }

    @Environment(AppModel.self) private var model
    @State private var bundle: String?
    @State private var data: String?
    @State private var steps = 100
    @State private var picked = Picked.bundle
    @State private var isPicking = false
    @State private var isTyping = false

    var body: some View {
        Form {
            Section("Bundle") {
                Picker("Bundle", selection: $bundle) {
                    Text("None").tag(String?.none)
                    ForEach(model.bundles, id: \.self) { Text($0).tag(String?.some($0)) }
                }
                Button("Copy a bundle into the app") { pick(.bundle) }
            }
            Section("Examples") {
                Picker("File", selection: $data) {
                    Text("None").tag(String?.none)
                    ForEach(model.dataFiles, id: \.self) { Text($0).tag(String?.some($0)) }
                }
                Button("Copy a JSON Lines file into the app") { pick(.data) }
                Button("Type examples") { isTyping = true }
            }
            Section("Steps") {
                Stepper("\(steps)", value: $steps, in: 10...10_000, step: 10)
            }
            Button("Choose") {
                if let bundle, let data { model.choose(bundle: bundle, data: data, steps: UInt64(steps)) }
            }
            .disabled(bundle == nil || data == nil || model.view.phase == .running)
        }
        .fileImporter(isPresented: $isPicking, allowedContentTypes: picked == .bundle ? [.folder] : [.data]) { result in
            switch result {
            case .success(let url): model.take(url, into: picked == .bundle ? model.places.bundles : model.places.data)
            case .failure(let error): model.message = error.localizedDescription
            }
        }
        .sheet(isPresented: $isTyping) { TypeView() }
        .onAppear { model.look() }
    }

    private func pick(_ what: Picked) {
        picked = what
        isPicking = true
    }
}
