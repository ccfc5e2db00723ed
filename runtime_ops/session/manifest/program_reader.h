// What of a manifest says how a program is called.
#pragma once

#include <string>

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

inline constexpr int64_t kLargest = 1 << 30;  // of any count: keeps products of two within int64

// Whether a file's name stays inside the bundle, on every system.
bool stays_inside(const std::string& name);

// Names that do not stay inside are refused where the manifest lists its files, and every other name must be one of those.
std::string read_file_name(const JsonNode& node);

ProgramSpec read_program(const JsonNode& node);

}  // namespace zoexport
