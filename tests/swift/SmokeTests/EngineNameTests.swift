import Cases
import Foundation
import XCTest
import ZoSession

/// A bundle that has programs for the CPU beside the GPU's, where there is no such GPU (test_swift.py names another one).
final class EngineNameTests: XCTestCase {
    private let bundle = Case.file("ZOEXPORT_GPU_BUNDLE")

    func testABundleSaysWhichEnginesItHasProgramsFor() throws {
        let engines = try BundleEngines(of: bundle)
        XCTAssertEqual([engines.own, engines.fallback], ["vulkan", "executorch"])
        let others = try BundleEngines(of: Case().bundle)
        XCTAssertEqual([others.own, others.fallback], ["executorch", nil])
        assertFails(.bundle) { try BundleEngines(of: bundle.appendingPathComponent("none")) }
    }

    func testWithoutAGPUAJobTrainsOnTheCPUAndSaysSo() throws {
        let folder = Case.file("ZOEXPORT_OUTPUT").appendingPathComponent("gpu-\(UUID().uuidString)")
        var request = JobRequest(
            bundle: bundle, data: Case.file("ZOEXPORT_TEXTS").appendingPathComponent("data.jsonl"), steps: 2
        )
        let job = try TrainingJob(folder: folder, cache: "")
        request.engineName = "vulkan"
        assertFails(.engine) { try job.start(request) }
        request.engineName = nil
        try job.start(request)
        try job.run(conditions: { ZoSession.Conditions() })
        let notice = try job.view.notice
        XCTAssertTrue(notice.contains("Engine executorch runs the programs instead."), notice)
        XCTAssertEqual(try job.session().info.engine, "executorch")
        // An engine that is named, and fails nowhere, is nothing to tell of.
        request.steps = 3
        request.engineName = "executorch"
        try job.start(request)
        try job.close()
        // As another process finds it.
        let again = try TrainingJob(folder: folder, cache: "")
        XCTAssertEqual(try again.request?.engineName, "executorch")
        try again.run(conditions: { ZoSession.Conditions() })
        XCTAssertEqual(try again.view.step, 3)
        XCTAssertEqual(try again.view.notice, "")
    }

    func testASessionOpensWithTheEngineThatIsNamed() throws {
        assertFails(.engine) { try TrainingSession(bundle: bundle, cache: "", engineName: "vulkan") }
        let session = try TrainingSession(bundle: bundle, cache: "", engineName: "executorch")
        XCTAssertEqual(try session.info.engine, "executorch")
        assertFails(.invalidArgument) { try TrainingSession(bundle: bundle, cache: "", engineName: "mlx") }
    }
}
