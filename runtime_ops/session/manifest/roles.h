// Dtype, shape and name that a value's role implies (docs/formats.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "session/manifest/manifest.h"

namespace zoexport {

using Values = std::vector<const ValueSpec*>;

Values with_role(const std::vector<ValueSpec>& values, const std::string& role);

// The dtype of an input of one value, by its role; -1 for a role of another shape.
int32_t scalar_dtype(const std::string& role);

// Return whether a value is the noise of a slot, and its slot: "noise.lora_B.layers.0" is for lora_B.layers.0.
bool is_noise(const ValueSpec& value);
std::string noise_slot(const ValueSpec& value);
// Check that it names a float slot and is float32 (queries, *SLOT), or (1, *SLOT) if a call perturbs one copy.
bool fits_noise(const Manifest& manifest, const ValueSpec& value);

// Return whether a value is the dropout mask of an adapter's inputs, and its slot: "dropout.lora_B.q_proj" is for the
// second matrix lora_B.q_proj, by its name in the program.
bool is_dropout(const ValueSpec& value);
std::string dropout_slot(const ValueSpec& value);

}  // namespace zoexport
