// The stages of a manifest, and the programs that they apply (docs/formats.md).
#pragma once

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

// Reads stages and what only they need. A manifest without them is that of a whole model: its programs `train` and
// `evaluate` become one stage.
void read_stages(const JsonNode& root, Manifest& manifest);

// Checks that every stage has its programs, that their values have the roles, dtypes and shapes of docs/formats.md for their
// place, and that each stage takes what the one before it gives.
void check_stages(const Manifest& manifest, JsonProblems& problems);

}  // namespace zoexport
