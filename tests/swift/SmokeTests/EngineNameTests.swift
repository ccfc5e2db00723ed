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

    func testWithoutAGPUTheCPUIsOfferedAndAJobTrainsOnIt() throws {
        let engines = try BundleEngines(of: bundle)
        let folder = Case.file("ZOEXPORT_OUTPUT").appendingPathComponent("gpu-\(UUID().uuidString)")
        var request = JobRequest(
            bundle: bundle, data: Case.file("ZOEXPORT_TEXTS").appendingPathComponent("data.jsonl"), steps: 2
        )
        let job = try TrainingJob(folder: folder, cache: "")
        let failure = try XCTUnwrap(assertFails(.engine) { try job.start(request) })
        XCTAssertTrue(failure.fix.contains("Choose the engine executorch"), failure.fix)
        XCTAssertEqual(engines.instead(of: nil, after: failure), engines.fallback)
        XCTAssertNil(engines.instead(of: engines.fallback, after: failure))
        XCTAssertNil(try BundleEngines(of: Case().bundle).instead(of: nil, after: failure))
        request.engineName = engines.fallback
        try job.start(request)
        try job.close()
        // As another process finds it.
        let again = try TrainingJob(folder: folder, cache: "")
        XCTAssertEqual(try again.request?.engineName, "executorch")
        try again.run(conditions: { ZoSession.Conditions() })
        XCTAssertEqual(try again.view.step, 2)
        XCTAssertEqual(try again.session().info.engine, "executorch")
    }

    func testASessionOpensWithTheEngineThatIsNamed() throws {
        assertFails(.engine) { try TrainingSession(bundle: bundle, cache: "") }
        let session = try TrainingSession(bundle: bundle, cache: "", engineName: "executorch")
        XCTAssertEqual(try session.info.engine, "executorch")
        assertFails(.invalidArgument) { try TrainingSession(bundle: bundle, cache: "", engineName: "mlx") }
    }
}
