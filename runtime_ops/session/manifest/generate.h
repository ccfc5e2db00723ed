// The member `generate` of a manifest.
#pragma once

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

void read_generate(const JsonNode& root, Manifest& manifest);
// Checks its programs against each other and the manifest.
void check_generate(const Manifest& manifest, JsonProblems& problems);

}  // namespace zoexport
