// Reader of the manifest's programs: files, inputs and outputs.
#pragma once

#include <string>

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

inline constexpr int64_t kLargest = 1 << 30;  // of any count: keeps products of two within int64

// Return whether a file's name stays inside the bundle, on every system.
bool stays_inside(const std::string& name);

// Read a file's name, which must be in the manifest's list of files; names that do not stay inside are refused there.
std::string read_file_name(const JsonNode& node);

ProgramSpec read_program(const JsonNode& node);

}  // namespace zoexport
