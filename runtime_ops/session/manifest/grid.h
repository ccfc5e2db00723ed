// What a manifest says of bundles that train integers: its member `grid` (docs/bundle.md).
#pragma once

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

// Reads the member, where it is there.
void read_grid(const JsonNode& root, Manifest& manifest);

// Checks it, the slots that it is about, and that nothing else is there which cannot train integers.
void check_grid(const Manifest& manifest, JsonProblems& problems);

}  // namespace zoexport
