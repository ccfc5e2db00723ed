import Foundation
import ZoSession

/// What iOS says of the device. Of the battery the system takes care itself, by its low power mode and what it lets run.
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
