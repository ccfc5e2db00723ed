// Train a bundle in Swift, complete a prompt, and write the adapter for PEFT.
// Arguments: bundle, data, state, steps, prompt, adapter. In an app, run this off the main thread.

import Foundation
import ZoSession

let arguments = CommandLine.arguments
let (bundle, data, state) = (
    URL(fileURLWithPath: arguments[1]), URL(fileURLWithPath: arguments[2]), URL(fileURLWithPath: arguments[3])
)
let session = try TrainingSession(bundle: bundle)
let dataset = try Dataset()
_ = try dataset.read(data, bundle: bundle)
try session.attach(state)  // creates the state, or resumes it
try session.train(dataset, totalSteps: UInt64(arguments[4])!) { progress in
    print("step \(progress.step) of \(progress.total): loss \(progress.loss)")
    return false  // true stops the run and saves it
}
try dataset.close()

var options = GenerateOptions()
options.maxNewTokens = 16
print(try session.generate(arguments[5], options: options).text)
try session.exportAdapter(to: URL(fileURLWithPath: arguments[6]))
try session.close()
