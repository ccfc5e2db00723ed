/// Settings of a run by key, such as "lr" or "dpo.beta" (graphs/schema/settings.schema.json).
public typealias Settings = [String: Setting]

/// The value of a setting, usually a literal: `["lr": 1e-3, "batch": 4, "pack": "on"]`.
public struct Setting: Codable, Hashable, Sendable {
    public typealias Value = Codable & Hashable & Sendable

    public let value: any Value

    public init(_ value: any Value) { self.value = value }

    public var double: Double? { value as? Double ?? integer.map { Double($0) } }
    public var integer: UInt64? { (value as? any BinaryInteger).flatMap { UInt64(exactly: $0) } }
    public var string: String? { value as? String }

    public init(from decoder: any Decoder) throws {
        let container = try decoder.singleValueContainer()
        let types: [any Value.Type] = [Bool.self, UInt64.self, Double.self, String.self, [Setting].self, Settings.self]
        for type in types {
            if let found = try? container.decode(type) {
                value = found
                return
            }
        }
        value = try container.decode(Bool?.self)  // null
    }

    public func encode(to encoder: any Encoder) throws {
        var container = encoder.singleValueContainer()
        try container.encode(value)
    }

    /// Compares numbers by value, whatever their types.
    public static func == (left: Setting, right: Setting) -> Bool { AnyHashable(left.value) == AnyHashable(right.value) }
    public func hash(into hasher: inout Hasher) { AnyHashable(value).hash(into: &hasher) }
}

extension Setting: ExpressibleByBooleanLiteral, ExpressibleByIntegerLiteral, ExpressibleByFloatLiteral,
    ExpressibleByStringLiteral
{
    public init(booleanLiteral value: Bool) { self.init(value) }
    public init(integerLiteral value: UInt64) { self.init(value) }
    public init(floatLiteral value: Double) { self.init(value) }
    public init(stringLiteral value: String) { self.init(value) }
}
