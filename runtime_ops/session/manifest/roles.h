// What a value's role says of its dtype, shape and name (docs/bundle.md).
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

// Whether a value is the noise of a slot, and of which: "noise.lora_B.layers.0" is that of lora_B.layers.0.
bool is_noise(const ValueSpec& value);
std::string noise_slot(const ValueSpec& value);
// Whether it is named after a slot of floats and float32 (queries, *SLOT), or (1, *SLOT) where a call perturbs one copy.
bool fits_noise(const Manifest& manifest, const ValueSpec& value);

// Whether a value is what the inputs of an adapter are multiplied by, and of which: "dropout.lora_B.q_proj" is that of the second
// matrix lora_B.q_proj, by its name in the program.
bool is_dropout(const ValueSpec& value);
std::string dropout_slot(const ValueSpec& value);

}  // namespace zoexport
