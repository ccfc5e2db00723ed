import Cases
import Foundation
import ZoSession

// Trainer CASE STATE STEP: trains as the case says, names every step, and sleeps within step STEP until it is killed.
let arguments = CommandLine.arguments
let test = try Case(arguments[1])
let session = try test.prepared(arguments[2])
try session.train(try test.examples(), totalSteps: test.expected.steps) { progress in
    FileHandle.standardOutput.write(Data("\(progress.step)\n".utf8))
    while String(progress.step) == arguments[3] { sleep(60) }
    return false
}
