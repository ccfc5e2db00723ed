// The program `update` of a bundle of stages: the next values of all trainable slots (docs/bundle.md).
#pragma once

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

// Checks that the program, where there is one, takes and gives every trainable slot, and takes what moves them.
void check_update(const Manifest& manifest, JsonProblems& problems);

}  // namespace zoexport
