// The manifest's member `grid`, for bundles that train integers (docs/formats.md).
#pragma once

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

// Read the member, if present.
void read_grid(const JsonNode& root, Manifest& manifest);

// Checks it, the slots that it is about, and that nothing else is there which cannot train integers.
void check_grid(const Manifest& manifest, JsonProblems& problems);

}  // namespace zoexport
