import Charts
import SwiftUI
import ZoSession
import ZoTraining

/// The run: its state, the curve of its losses, what is left, and what the examples say before and after.
struct RunView: View {
    @Environment(AppModel.self) private var model

    private var screen: TrainingScreen { model.screen }
    private var view: JobView { screen.view }

    var body: some View {
        List {
            Section {
                LabeledContent("State", value: view.title)
                if let problem = screen.problem { Text(problem.description).font(.callout) }
                if !view.notice.isEmpty { Text(view.notice).font(.callout) }
                if let request = screen.request {
                    LabeledContent("Bundle", value: request.bundle.lastPathComponent)
                    LabeledContent("Examples", value: view.examples.formatted())
                    if view.shortened > 0 { LabeledContent("Truncated", value: view.shortened.formatted()) }
                    ProgressView(value: Double(view.step), total: Double(max(request.steps, view.step, 1))) {
                        Text("\(view.step.formatted()) of \(request.steps.formatted()) steps")
                    }
                }
                if let left = view.secondsLeft {
                    LabeledContent("Remaining", value: Duration.seconds(left).formatted(.time(pattern: .minuteSecond)))
                }
            }
            Section("Loss") {
                Chart {
                    ForEach(screen.losses, id: \.step) {
                        LineMark(x: .value("Step", $0.step), y: .value("Loss", $0.loss))
                    }
                    ForEach(view.evaluations, id: \.step) { evaluation in
                        if let loss = evaluation.loss {
                            PointMark(x: .value("Step", evaluation.step), y: .value("Validation", loss))
                        }
                    }
                }
                .frame(height: 200)
                if let best = view.bestStep { LabeledContent("Best step", value: best.formatted()) }
                if let before = view.before { LabeledContent("Before", value: before.title) }
                if let after = view.after { LabeledContent("After", value: after.title) }
                if view.anonymousBytes > 0 { LabeledContent("Memory", value: Int64(view.anonymousBytes).formatted(.byteCount(style: .memory))) }
            }
            Section {
                if screen.canResume {
                    Button("Resume") { model.goOn() }
                } else {
                    Button("Start") { model.start() }.disabled(!screen.canStart)
                }
                Button("Pause") { model.pause() }.disabled(!screen.isActive)
                Button("Cancel", role: .destructive) { model.cancel() }.disabled(!screen.isActive && !screen.canResume)
            }
        }
        .confirmationDialog(
            screen.question?.description ?? "", isPresented: .constant(screen.question != nil), titleVisibility: .visible
        ) {
            Button("Continue from this run") { model.start(.goOn) }
            Button("Start over", role: .destructive) { model.start(.anew) }
        }
    }
}
