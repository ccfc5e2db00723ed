import Foundation
import Observation
import UIKit
import ZoSession
import ZoTraining

/// `TrainingModel` as SwiftUI observes it, with the app's folders.
@MainActor
@Observable
final class AppModel {
    private(set) var screen: TrainingScreen
    private(set) var bundles: [String] = []
    private(set) var dataFiles: [String] = []
    /// Imported fraction of a bundle, 0 to 1.
    private(set) var imported: Double?
    var message: String?
    /// Called once for each run that the person starts, when it begins.
    @ObservationIgnored var onBegun: (() -> Void)?
    @ObservationIgnored var absence = Absence()
    @ObservationIgnored private var isStarting = false

    let places: Places
    @ObservationIgnored private let model: TrainingModel

    /// - Throws: the app's documents cannot be written.
    init() throws {
        places = Places(root: URL.documentsDirectory, cache: URL.cachesDirectory)
        let cache = places.cache
        model = try TrainingModel(.init(
            places: places, conditions: { [root = places.root] in Device.conditions(at: root) },
            engine: { try await Engines.engine(of: $0, cache: cache) }
        ))
        screen = model.screen
        model.onChange = { [weak self] in self?.show($0) }
        look()
    }

    /// True if training computes on the GPU, which an app may use in the foreground only.
    var needsForeground: Bool { screen.request.map { Engines.name(of: $0.bundle) == "mlx" } ?? false }

    func start(_ answer: Answer = .ask) {
        isStarting = true
        model.start(answer)
    }

    /// Goes on, as the person has asked.
    func goOn() {
        isStarting = true
        model.resume()
    }

    func resume() { model.resume() }
    func pause(_ reason: Reason = .asked) { model.pause(reason) }
    func cancel() { model.cancel() }
    func hush() { model.hush() }

    /// The system does not let the run go on in the background any longer.
    func expire() {
        absence.expire()
        model.pause(.background)
    }

    func finished() async { await model.finished() }

    func choose(bundle: String, data: String, steps: UInt64, learningRate: Double?, heldOut: String?) {
        let folder = places.bundles.appendingPathComponent(bundle, isDirectory: true)
        model.choose(JobRequest(
            bundle: folder, data: places.data.appendingPathComponent(data), steps: steps,
            settings: learningRate.map { ["learning_rate": Setting($0)] } ?? [:],
            heldOut: heldOut.map { places.data.appendingPathComponent($0) }
        ))
    }

    /// Lists what can be chosen.
    func look() {
        func names(_ folder: URL) -> [String] {
            ((try? FileManager.default.contentsOfDirectory(atPath: folder.path)) ?? []).filter { !$0.hasPrefix(".") }.sorted()
        }
        do {
            try places.tidy()
            // Bundles can be copied again, and examples are the person's own files.
            for var folder in [places.bundles, places.root.appendingPathComponent("states", isDirectory: true)] {
                var values = URLResourceValues()
                values.isExcludedFromBackup = true
                try? folder.setResourceValues(values)
            }
        } catch {
            message = error.localizedDescription
        }
        bundles = names(places.bundles)
        dataFiles = names(places.data)
    }

    /// Imports a packed bundle, or copies a folder or a data file; it replaces what has its name.
    func take(_ picked: URL, into folder: URL) async {
        let places = places
        do {
            try await Task.detached {
                let allowed = picked.startAccessingSecurityScopedResource()
                defer { if allowed { picked.stopAccessingSecurityScopedResource() } }
                if folder == places.bundles, !picked.hasDirectoryPath {
                    _ = try places.importBundle(picked) { [weak self] done, total in
                        Task { @MainActor in self?.imported = Double(done) / Double(max(total, 1)) }
                        return false
                    }
                } else {
                    try copy(picked, into: folder)
                }
            }.value
        } catch {
            message = "\(error)"
        }
        imported = nil
        look()
    }

    /// Adds examples that were typed to a data file.
    func write(_ examples: [TypedExample], as name: String) {
        attempt {
            try TypedExample.write(
                examples.map(\.typed), to: places.data.appendingPathComponent(name), append: true
            )
        }
        look()
    }

    /// Removes a data file and what was trained.
    func forget(data: String?) {
        model.discard()
        if let data { attempt { try FileManager.default.removeItem(at: places.data.appendingPathComponent(data)) } }
        look()
    }

    /// The adapter to share, in PEFT's folder or as llama.cpp's file; nil after saying why not.
    func adapter(_ format: AdapterFormat) async -> URL? {
        let isFolder = format == .peft
        let target = places.cache.appendingPathComponent(isFolder ? "adapter" : "adapter.gguf", isDirectory: isFolder)
        do {
            try await model.withSession {
                try $0.exportAdapter(to: target, format: format, outtype: isFolder ? nil : .f16, replace: true)
            }
            return target
        } catch {
            message = "\(error)"
            return nil
        }
    }

    /// Asks with what was trained and without; the answers are on the screen. Returns whether there are some.
    func ask(_ question: String) async -> Bool {
        do {
            try await model.ask(question)
            return true
        } catch {
            message = "\(error)"
            return false
        }
    }

    private func show(_ screen: TrainingScreen) {
        self.screen = screen
        if isStarting, screen.isActive {
            isStarting = false
            onBegun?()
        } else if screen.problem != nil || screen.question != nil {
            isStarting = false
        }
        // Locked, the phone stops the app after some seconds.
        UIApplication.shared.isIdleTimerDisabled = screen.isActive
    }

    private func attempt(_ action: () throws -> Void) {
        do { try action() } catch { message = "\(error)" }
    }
}

private func copy(_ picked: URL, into folder: URL) throws {
    let files = FileManager.default
    let target = folder.appendingPathComponent(picked.lastPathComponent)
    let partial = folder.appendingPathComponent(".\(UUID().uuidString)")
    defer { try? files.removeItem(at: partial) }
    try files.copyItem(at: picked, to: partial)
    try? files.removeItem(at: target)
    try files.moveItem(at: partial, to: target)
}
