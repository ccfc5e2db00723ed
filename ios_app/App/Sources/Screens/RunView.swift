import Charts
import SwiftUI
import ZoSession
import ZoTraining

/// The run: its state, the curve of its losses, what a step costs, and the adapter.
struct RunView: View {
    @Environment(AppModel.self) private var model
    @State private var adapter: URL?

    private var view: TrainingView { model.view }

    var body: some View {
        List {
            Section {
                LabeledContent("State", value: view.phase.title)
                if let detail = view.phase.detail { Text(detail).font(.callout) }
                if let request = view.request {
                    LabeledContent("Bundle", value: "\(request.bundle) (\(view.method))")
                    LabeledContent("Examples", value: "\(view.examples), \(view.shortened) of them shortened")
                    ProgressView(value: Double(view.step), total: Double(max(request.totalSteps, view.step, 1))) {
                        Text("\(view.step) of \(request.totalSteps) steps")
                    }
                }
            }
            Section("Loss") {
                Chart(view.points, id: \.step) { point in
                    LineMark(x: .value("Step", point.step), y: .value("Loss", point.loss))
                }
                .frame(height: 200)
            }
            Section("Device") {
                LabeledContent("Step", value: view.stepSeconds.map { String(format: "%.2f s", $0) } ?? "–")
                LabeledContent("Memory", value: "\(view.memoryBytes >> 20) MiB")
                LabeledContent("Temperature", value: view.heat.title)
            }
            Section {
                Button(view.step > 0 ? "Go on" : "Start") { model.start() }.disabled(!view.canStart)
                Button("Pause") { model.pause() }.disabled(!view.canPause)
                Button("Cancel", role: .destructive) { model.cancel() }.disabled(!view.canCancel)
                if let adapter {
                    ShareLink("Share the adapter", item: adapter)
                } else {
                    Button("Make the adapter's files") { Task { adapter = await model.adapter() } }
                        .disabled(view.step == 0 || view.phase == .running)
                }
            }
        }
        .onChange(of: view.step) { adapter = nil }
    }
}
