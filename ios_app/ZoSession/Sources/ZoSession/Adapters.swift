import CZoexport
import Foundation

/// The files that an adapter becomes.
public enum AdapterFormat: Sendable {
    /// A folder for PEFT.
    case peft
    /// A file for llama.cpp, with these numbers.
    case gguf(Outtype = .f32)

    public enum Outtype: Int32, Sendable {
        case f32 = 0, f16, q8_0
    }
}

extension TrainingSession {
    /// The names of the loaded adapters.
    public var adapters: [String] {
        get throws {
            try handle.call { session in
                var names: [String] = []
                var name: UnsafePointer<CChar>?
                while zo_session_adapter(session, UInt32(names.count), &name, nil) == ZO_OK, let found = name {
                    names.append(String(cString: found))
                }
                return names
            }
        }
    }

    /// Loads an adapter in PEFT's form under a name, in place of one that has it, to generate with; it is in no state.
    ///
    /// - Throws: `ZoError` of kind `state`: it does not fit the bundle, or is damaged; nothing changes.
    public func loadAdapter(_ name: String, from folder: URL) throws {
        let (name, path) = (try checked(name, "name"), try checked(folder.path, "folder"))
        try handle.call { session in try verb { zo_session_load_adapter(session, name, path, $0) } }
    }

    /// Frees an adapter.
    public func dropAdapter(_ name: String) throws {
        let name = try checked(name, "name")
        try handle.call { session in try verb { zo_session_drop_adapter(session, name, $0) } }
    }

    /// Writes what was trained, the pending update applied, as an adapter's files, whole or not at all. Changes no state.
    ///
    /// - Parameter replace: what is at `target` gives way.
    /// - Throws: `ZoError` of kind `invalidArgument`: the bundle trains no adapter of floats, `target` exists or cannot be
    ///   written, or numbers are not finite or beyond the type; of kind `bundle`: it has no names of llama.cpp for its layers.
    public func exportAdapter(to target: URL, format: AdapterFormat = .peft, replace: Bool = false) throws {
        let path = try checked(target.path, "target")
        var options = sized(zo_export_options())
        options.replace = replace ? 1 : 0
        switch format {
        case .peft:
            options.format = Int32(ZO_ADAPTER_PEFT)
        case .gguf(let outtype):
            options.format = Int32(ZO_ADAPTER_GGUF)
            options.outtype = outtype.rawValue
        }
        try handle.call { session in try verb { zo_session_export_adapter(session, &options, path, $0) } }
    }
}
