import XCTest
import ZoSession
import ZoTraining

/// The run when the person leaves the app, comes back, or the system ends it.
final class AbsenceTests: XCTestCase {
    func testARunThatMayNotGoOnIsPausedAndGoesOnAfterwards() {
        var absence = Absence()
        XCTAssertFalse(absence.cover(isActive: true, needsForeground: false))
        XCTAssertTrue(absence.leave(isActive: true))
        XCTAssertTrue(absence.comeBack(reason: .background))
        XCTAssertFalse(absence.comeBack(reason: .background))  // once
    }

    func testTheGpuStopsWhereTheAppIsCovered() {
        var absence = Absence()
        XCTAssertTrue(absence.cover(isActive: true, needsForeground: true))
        XCTAssertFalse(absence.leave(isActive: false))
        XCTAssertTrue(absence.comeBack(reason: .background))
    }

    func testWhatThePersonOrTheDevicePausedStaysSo() {
        for reason in [Reason.asked, .memory, .none] {
            var absence = Absence()
            XCTAssertTrue(absence.leave(isActive: true))
            XCTAssertFalse(absence.comeBack(reason: reason))
        }
        var absence = Absence()
        XCTAssertFalse(absence.leave(isActive: false))
        XCTAssertFalse(absence.comeBack(reason: .background))
    }

    func testARunThatTheSystemLetsGoOnIsLeftAlone() {
        var absence = Absence()
        absence.isContinued = true
        XCTAssertFalse(absence.leave(isActive: true))
        XCTAssertFalse(absence.comeBack(reason: .none))
    }

    func testARunThatTheSystemEndsDoesNotGoOnByItself() {
        var absence = Absence()
        absence.isContinued = true
        XCTAssertFalse(absence.leave(isActive: true))
        absence.expire()
        XCTAssertFalse(absence.comeBack(reason: .background))
        // The next one is paused again where the app is left.
        XCTAssertTrue(absence.leave(isActive: true))
    }
}
