// What a manifest says of a model that is perturbed in two blocks: its member `blocks` (docs/bundle.md).
#pragma once

#include "session/json_reader.h"
#include "session/manifest.h"

namespace zoexport {

// Reads the member, where it is there.
void read_blocks(const JsonNode& root, Manifest& manifest);

// Checks that both blocks have something to train, and that the bundle's programs do not perturb by themselves.
void check_blocks(const Manifest& manifest, JsonProblems& problems);

// Whether the second block reads a slot: one that both read belongs to it.
bool in_second_block(const Manifest& manifest, const std::string& slot);

}  // namespace zoexport
