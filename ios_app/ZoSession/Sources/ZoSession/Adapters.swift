import Foundation
import CZoexport

/// A folder for PEFT, or a file for llama.cpp.
public enum AdapterFormat: String, Codable, Sendable { case peft, gguf }

/// The numbers of a file for llama.cpp.
public enum Outtype: String, Codable, Sendable { case f32, f16, q8_0 }

extension TrainingSession {
    /// Loads an adapter in PEFT's form under a name, to generate with; replaces one of the same name, and is in no state.
    /// - Throws: `ZoError` of kind `state`: it does not fit the bundle, or is damaged; nothing changes.
    public func loadAdapter(_ name: String, from folder: URL) throws {
        try handle.verb { try zo_session_load_adapter($0, checked(name, "name"), checked(folder.path, "folder"), $1) }
    }

    /// Frees an adapter.
    public func dropAdapter(_ name: String) throws {
        try handle.verb { try zo_session_drop_adapter($0, checked(name, "name"), $1) }
    }

    /// Writes what was trained, the pending update applied, as an adapter's files, completely or not at all.
    /// - Parameter replace: replaces what is at `target`.
    /// - Throws: `ZoError` of kind `invalidArgument`: the bundle trains no adapter of floats, `target` exists or cannot be
    ///   written, or a value is not finite or beyond the type; `bundle`: llama.cpp has no names for its layers.
    public func exportAdapter(
        to target: URL, format: AdapterFormat? = nil, outtype: Outtype? = nil, replace: Bool? = nil
    ) throws {
        let options = try json(["format": format, "outtype": outtype, "replace": replace])
        try handle.verb { try zo_session_export_adapter($0, options, checked(target.path, "target"), $1) }
    }
}
