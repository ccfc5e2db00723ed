import Foundation
import ZoSession
import ZoTraining

// LifeKilled CASE OUTPUT STEPS: imports the signed bundle and trains, and is killed at its tenth look at the device.

/// Looks at the device so far.
final class Looks: @unchecked Sendable {
    private let lock = NSLock()
    private var count = 0

    func isTenth() -> Bool {
        lock.withLock {
            count += 1
            return count == 10
        }
    }
}

let (folder, output) = (URL(fileURLWithPath: CommandLine.arguments[1]), URL(fileURLWithPath: CommandLine.arguments[2]))
let places = Places(root: output.appendingPathComponent("app"), cache: output.appendingPathComponent("cache"))
let keys = try String(contentsOf: folder.appendingPathComponent("life.pub"), encoding: .utf8)
    .split(separator: "\n").map(String.init)
let bundle = try places.importBundle(folder.appendingPathComponent("life.zobundle"), trustedKeys: keys)
let packed = places.cache.appendingPathComponent("packed").path
let job = try TrainingJob(folder: places.root, cache: packed, trustedKeys: keys)
let data = folder.appendingPathComponent("life.jsonl")
let request = JobRequest(
    bundle: bundle, data: data, steps: UInt64(CommandLine.arguments[3])!,
    heldOut: folder.appendingPathComponent("held-out.jsonl")
)
try job.start(request)
let looks = Looks()
try job.run(conditions: {
    if looks.isTenth() { kill(getpid(), SIGKILL) }
    return ZoSession.Conditions()
})
