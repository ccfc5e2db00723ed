import Foundation
import Observation
import ZoSession
import ZoTraining

/// `TrainingModel` as SwiftUI observes it, with the app's folders.
@MainActor
@Observable
final class AppModel {
    private(set) var view: TrainingView
    private(set) var bundles: [String] = []
    private(set) var dataFiles: [String] = []
    var message: String?

    let places: Places
    @ObservationIgnored private let model: TrainingModel
    @ObservationIgnored private var observers: [any NSObjectProtocol] = []

    init() {
        places = Places(root: URL.documentsDirectory, cache: URL.cachesDirectory)
        let cache = places.cache
        model = TrainingModel(.init(
            places: places, conditions: Device(),
            tokenizer: { try await BundleTokenizer(bundle: $0) },
            engine: { try await Engines.engine(of: $0, cache: cache) }
        ))
        view = model.view
        model.onChange = { [weak self] in self?.view = $0 }
        observers.append(NotificationCenter.default.addObserver(
            forName: ProcessInfo.thermalStateDidChangeNotification, object: nil, queue: .main
        ) { [weak self] _ in
            MainActor.assumeIsolated { self?.model.conditionsChanged() }
        })
        look()
    }

    var hasUnfinishedRun: Bool {
        switch view.phase {
        case .running, .paused: true
        case .idle, .failed, .done: false
        }
    }

    func start() { model.start() }
    func pause() { model.pause() }
    func cancel() { model.cancel() }
    func conditionsChanged() { model.conditionsChanged() }
    func finished() async { await model.finished() }

    func choose(bundle: String, data: String, steps: UInt64) {
        model.choose(RunRequest(bundle: bundle, data: data, totalSteps: steps))
    }

    /// Lists what can be chosen.
    func look() {
        func names(_ folder: URL) -> [String] {
            ((try? FileManager.default.contentsOfDirectory(atPath: folder.path)) ?? []).filter { !$0.hasPrefix(".") }.sorted()
        }
        do { try places.tidy() } catch { message = error.localizedDescription }
        bundles = names(places.bundles)
        dataFiles = names(places.data)
    }

    /// Copies what the user picked into the app's folders; it replaces what has its name.
    func take(_ picked: URL, into folder: URL) {
        let allowed = picked.startAccessingSecurityScopedResource()
        defer { if allowed { picked.stopAccessingSecurityScopedResource() } }
        let files = FileManager.default
        let target = folder.appendingPathComponent(picked.lastPathComponent)
        let partial = folder.appendingPathComponent(".\(UUID().uuidString)")
        do {
            try files.copyItem(at: picked, to: partial)
            try? files.removeItem(at: target)
            try files.moveItem(at: partial, to: target)
        } catch {
            try? files.removeItem(at: partial)
            message = error.localizedDescription
        }
        look()
    }

    /// Writes examples that were typed as a data file.
    func write(_ examples: [TypedExample], as name: String) {
        do {
            try TypedExample.lines(examples).write(to: places.data.appendingPathComponent(name), options: .atomic)
        } catch {
            message = error.localizedDescription
        }
        look()
    }

    /// The adapter as a folder to share, or nil after saying why not.
    func adapter() async -> URL? {
        do {
            return try await model.exportAdapter(into: places.cache)
        } catch {
            message = "\(error)"
            return nil
        }
    }
}
