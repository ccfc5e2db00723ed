// Inputs that do not depend on a call's rows: values that stand alone, and the noise of programs that cannot make it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "session/call_runner.h"
#include "session/manifest.h"

namespace zoexport {

// The dtype of an input of one value, by its role; -1 for a role of another shape.
int32_t scalar_dtype(const std::string& role);
// Where such an input lies.
const void* scalar_value(const CallScalars& scalars, const std::string& role);

// Whether a value is the noise of a slot, and of which: "noise.lora_B.layers.0" is that of lora_B.layers.0.
bool is_noise(const ValueSpec& value);
std::string noise_slot(const ValueSpec& value);
// Whether it is named after a slot of floats and float32 (queries, *SLOT), or (1, *SLOT) where a call perturbs one copy.
bool fits_noise(const Manifest& manifest, const ValueSpec& value);

// The noise that programs are given. It is made once for a step, whatever number of calls and programs take it.
class NoiseInputs {
 public:
  // The normals of a call's step, or of the step before. Zeros where nothing is perturbed, or nothing is pending, so that
  // every bit of the slot stays. Valid until the value is asked for again.
  const float* values(const ValueSpec& value, const SlotSpec& slot, const CallScalars& scalars);

 private:
  struct Made {
    // Seed, step and first query; nothing where they are zeros.
    std::optional<std::tuple<uint64_t, uint32_t, uint32_t>> of;
    std::vector<float> values;
  };
  std::map<std::string, Made> made_;  // by the value's name
};

}  // namespace zoexport
