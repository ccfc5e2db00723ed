import Foundation
import XCTest
import ZoSession

/// Values of settings as JSON.
final class SettingTests: XCTestCase {
    func testSettingsAreJson() throws {
        let text = #"{"a_b":18446744073709551615,"c":{"d.e":[true,null,-1.5,"x"]},"f":0.1,"g":2.0}"#
        let found = try JSONDecoder().decode(Settings.self, from: Data(text.utf8))
        XCTAssertEqual(found["a_b"], 18_446_744_073_709_551_615)
        XCTAssertEqual(found["c"]?.value as? Settings, ["d.e": Setting([true, Setting(Bool?.none), Setting(-1.5), "x"] as [Setting])])
        XCTAssertEqual([found["f"]?.double, found["g"]?.double, found["a_b"]?.double], [0.1, 2, 18_446_744_073_709_551_616])
        XCTAssertEqual([found["g"]?.integer, found["f"]?.integer], [2, nil])
        XCTAssertNil(found["c"]?.string)
        XCTAssertEqual(try JSONDecoder().decode(Settings.self, from: JSONEncoder().encode(found)), found)
    }
}
