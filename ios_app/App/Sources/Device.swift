import Foundation
import ZoSession

/// The condition of the device by iOS. The system takes care of the battery itself, by its low power mode.
enum Device {
    static func conditions(at folder: URL) -> Conditions {
        let free = try? folder.resourceValues(forKeys: [.volumeAvailableCapacityForImportantUsageKey])
        return Conditions(
            heat: heat, freeBytes: free?.volumeAvailableCapacityForImportantUsage.map(UInt64.init(clamping:)),
            memoryBytes: UInt64(os_proc_available_memory())
        )
    }

    private static var heat: Heat {
        switch ProcessInfo.processInfo.thermalState {
        case .nominal: .nominal
        case .fair: .fair
        case .serious: .serious
        case .critical: .critical
        @unknown default: .serious
        }
    }
}
