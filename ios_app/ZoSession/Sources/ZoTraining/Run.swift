import Foundation
import ZoSession

/// The app's folders. Names in them are kept, never paths: a container moves when the app is updated.
public struct Places: Sendable {
    public let root: URL
    /// Folder of packed weights and compiled packages, which the system may empty.
    public let cache: URL

    public init(root: URL, cache: URL) {
        self.root = root
        self.cache = cache
    }

    public var bundles: URL { root.appendingPathComponent("bundles", isDirectory: true) }
    public var data: URL { root.appendingPathComponent("data", isDirectory: true) }
    public var states: URL { root.appendingPathComponent("states", isDirectory: true) }

    /// Makes the folders, and moves into them what lies at the root, where Finder puts what it copies: folders with a
    /// manifest are bundles, files that end in .jsonl are data. What has a name that is taken stays.
    public func tidy() throws {
        let files = FileManager.default
        for folder in [bundles, data, states] {
            try files.createDirectory(at: folder, withIntermediateDirectories: true)
        }
        for name in try files.contentsOfDirectory(atPath: root.path) {
            let found = root.appendingPathComponent(name)
            if files.fileExists(atPath: found.appendingPathComponent("manifest.json").path) {
                try? files.moveItem(at: found, to: bundles.appendingPathComponent(name))
            } else if name.hasSuffix(".jsonl") {
                try? files.moveItem(at: found, to: data.appendingPathComponent(name))
            }
        }
    }

    /// The folder of a run's state: another bundle, or other data, is another run.
    func state(of request: RunRequest, bundleID: String) -> URL {
        states.appendingPathComponent("\(bundleID.prefix(16))-\(request.data)", isDirectory: true)
    }
}

/// What is to be trained: names of a bundle's folder and a data file.
public struct RunRequest: Codable, Equatable, Sendable {
    public var bundle: String
    public var data: String
    /// Steps in total, those of earlier starts included.
    public var totalSteps: UInt64

    public init(bundle: String, data: String, totalSteps: UInt64) {
        self.bundle = bundle
        self.data = data
        self.totalSteps = totalSteps
    }
}

/// The run that is not finished, so that another process can go on with it.
public struct RunStore: Sendable {
    private let file: URL

    public init(_ places: Places) {
        file = places.root.appendingPathComponent("run.json")
    }

    /// nil where there is none, or what is there is no run.
    public func load() -> RunRequest? {
        (try? Data(contentsOf: file)).flatMap { try? JSONDecoder().decode(RunRequest.self, from: $0) }
    }

    public func save(_ request: RunRequest) throws {
        try FileManager.default.createDirectory(
            at: file.deletingLastPathComponent(), withIntermediateDirectories: true
        )
        try JSONEncoder().encode(request).write(to: file, options: .atomic)
    }

    public func remove() {
        try? FileManager.default.removeItem(at: file)
    }
}
