import Foundation
import ZoSession

/// PEFT's files of an adapter, as `zoexport adapter export --format peft` writes them: `adapter_config.json`, which the
/// bundle has, and `adapter_model.safetensors`.
enum PeftAdapter {
    private static let config = "adapter_config.json"
    private static let weights = "adapter_model.safetensors"

    /// Writes the folder `target` whole or not at all, with the session's values, the pending update applied.
    ///
    /// - Throws: `ZoError` of kind `bundle`: its method trains no LoRA adapter.
    static func write(_ session: TrainingSession, bundle: URL, to target: URL) throws {
        let slots = try session.slots.filter { $0.name.hasPrefix("lora_A.") || $0.name.hasPrefix("lora_B.") }
        guard !slots.isEmpty, slots.allSatisfy({ $0.dtype == .float32 && $0.shape.count == 2 }) else {
            throw ZoError(
                .bundle, where: bundle.path, found: "a bundle that trains no LoRA adapter",
                expected: "slots lora_A and lora_B of float32",
                fix: "Copy the state to a computer, and export it with zoexport adapter export."
            )
        }
        let files = FileManager.default
        let partial = target.appendingPathExtension("partial")
        try? files.removeItem(at: partial)
        try files.createDirectory(at: partial, withIntermediateDirectories: true)
        defer { try? files.removeItem(at: partial) }
        try files.copyItem(
            at: bundle.appendingPathComponent(config), to: partial.appendingPathComponent(config)
        )
        let tensors = try slots.map { slot in
            Tensor(name: key(slot.name), shape: slot.shape.reversed(), values: turned(try session.readSlot(slot.name), slot.shape))
        }
        try safetensors(tensors).write(to: partial.appendingPathComponent(weights))
        try? files.removeItem(at: target)
        try files.moveItem(at: partial, to: target)
    }

    private struct Tensor {
        let name: String
        let shape: [Int]
        let values: [Float]
    }

    /// `lora_A.<module>` is PEFT's `base_model.model.<module>.lora_A.weight`.
    private static func key(_ slot: String) -> String {
        let half = slot.prefix { $0 != "." }
        return "base_model.model.\(slot.dropFirst(half.count + 1)).\(half).weight"
    }

    /// The transpose: PEFT has (rank, in) and (out, rank).
    private static func turned(_ values: [Float], _ shape: [Int]) -> [Float] {
        (0..<values.count).map { place in
            let (column, row) = place.quotientAndRemainder(dividingBy: shape[0])
            return values[row * shape[1] + column]
        }
    }

    private static func safetensors(_ tensors: [Tensor]) throws -> Data {
        // PEFT refuses files that do not say which framework's layout they have.
        var header: [String: Any] = ["__metadata__": ["format": "pt"]]
        var data = Data()
        for tensor in tensors {
            let begin = data.count
            for value in tensor.values {
                withUnsafeBytes(of: value.bitPattern.littleEndian) { data.append(contentsOf: $0) }
            }
            header[tensor.name] = ["dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, data.count]]
        }
        var text = try JSONSerialization.data(withJSONObject: header, options: .sortedKeys)
        text.append(contentsOf: [UInt8](repeating: UInt8(ascii: " "), count: (8 - text.count % 8) % 8))
        var file = Data()
        withUnsafeBytes(of: UInt64(text.count).littleEndian) { file.append(contentsOf: $0) }
        return file + text + data
    }
}
