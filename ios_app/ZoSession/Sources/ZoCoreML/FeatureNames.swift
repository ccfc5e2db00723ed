/// The names of a program's inputs and outputs in a Core ML package: those of `zoexport.core.coreml_names`, which names
/// them when a bundle is compiled.
enum FeatureNames {
    /// Words of the language that ML Programs are written in.
    private static let reserved: Set<String> = [
        "any", "bool", "dict", "false", "func", "list", "program", "state", "string", "tensor", "true", "tuple",
        "bf16", "fp16", "fp32", "fp64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    ]

    /// The name of the input `name`: letters, digits and underscores of ASCII.
    static func input(_ name: String) -> String {
        let plain = String(String.UnicodeScalarView(name.unicodeScalars.map { isPlain($0) ? $0 : "_" }))
        let begins = plain.unicodeScalars.first.map { isPlain($0) && !("0"..."9").contains($0) && $0 != "_" } ?? false
        return begins && !reserved.contains(plain) ? plain : "v_\(plain)"
    }

    /// The name of the output `name`, which may be an input's too.
    static func output(_ name: String) -> String {
        input("out.\(name)")
    }

    private static func isPlain(_ character: Unicode.Scalar) -> Bool {
        switch character {
        case "a"..."z", "A"..."Z", "0"..."9", "_": true
        default: false
        }
    }
}
