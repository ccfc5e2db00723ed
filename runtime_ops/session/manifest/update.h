// The program `update` of a bundle of stages: the next values of all trainable slots (docs/formats.md).
#pragma once

#include "session/manifest/manifest.h"
#include "session/storage/json_reader.h"

namespace zoexport {

// Check that the update program, if any, takes and gives every trainable slot and takes the inputs of the update.
void check_update(const Manifest& manifest, JsonProblems& problems);

}  // namespace zoexport
