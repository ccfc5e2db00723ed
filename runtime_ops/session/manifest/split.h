// The part of a manifest that only split bundles have: stages, and the programs that they apply (docs/bundle.md).
#pragma once

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

// Reads stages, lengths, label_rows and weights, where the manifest has stages.
void read_split(const JsonNode& root, Manifest& manifest);

// Checks that every stage has its programs, that their values have the roles and shapes of docs/bundle.md, and that each
// stage takes what the one before it gives.
void check_split(const Manifest& manifest, JsonProblems& problems);

}  // namespace zoexport
