// The manifest's member `step` (docs/formats.md).
#pragma once

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

// Reads the member; first-order methods have none.
void read_step(const JsonNode& root, Manifest& manifest);

// Checks that every level has something to train, and that the bundle's programs leave to the session what the plan does.
void check_step(const Manifest& manifest, JsonProblems& problems);

}  // namespace zoexport
