import Foundation

/// How warm the device is, as the system says: `ProcessInfo.ThermalState`, which Linux does not have.
public enum Heat: Int, Comparable, Sendable {
    case nominal, fair, serious, critical

    public static func < (one: Heat, other: Heat) -> Bool { one.rawValue < other.rawValue }
}

/// What a run asks of the device.
public protocol DeviceConditions: Sendable {
    var heat: Heat { get }
    /// What the process is charged for: `phys_footprint` on Apple's systems. 0 where the system does not say.
    var memoryBytes: UInt64 { get }
    /// Room for files in `folder`; nil where the system does not say.
    func freeBytes(in folder: URL) -> Int64?
}

/// When a run waits.
public struct Limits: Sendable {
    /// The least room on the disk that a run leaves: states take what an adapter and its optimizer take, a few times.
    public var freeBytes: Int64 = 300 << 20
    /// From here on a run waits until it is below again.
    public var heat: Heat = .serious

    public init() {}
}
