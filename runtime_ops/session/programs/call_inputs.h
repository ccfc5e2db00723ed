// Inputs that do not depend on a call's rows: values that stand alone, and the noise of programs that cannot make it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "rng/variants.h"
#include "session/manifest/manifest.h"
#include "session/manifest/roles.h"

namespace zoexport {

// The inputs of a call that are not rows or slots.
struct CallScalars {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t query = 0;
  float sign = 1;
  float learning_rate = 0;
  float epsilon = 0;
  const std::vector<float>* gradients = nullptr;  // one for each query; null: zeros, nothing is pending
  bool drops = false;                             // whether adapters leave out inputs, by the seed and the step
};

// The values of a slot that a call reads, in the slot's dtype.
using StateValues = std::function<const void*(size_t slot)>;

// Return the address of a single-value input.
const void* scalar_value(const CallScalars& scalars, const std::string& role);

// Noise inputs of programs, generated once per step and shared by all calls and programs.
class NoiseInputs {
 public:
  explicit NoiseInputs(rng::Noise noise) : blocks_(rng::blocks_of(noise)) {}

  // The noise of a call's step, or of the step before. Zeros if nothing is perturbed, or nothing is pending, so that
  // every bit of the slot stays. Valid until the value is asked for again.
  const float* values(const ValueSpec& value, const SlotSpec& slot, const CallScalars& scalars);

 private:
  struct Made {
    // Seed, step and first query; nothing where they are zeros.
    std::optional<std::tuple<uint64_t, uint32_t, uint32_t>> of;
    std::vector<float> values;
  };
  rng::NoiseBlocks blocks_;
  std::map<std::string, Made> made_;  // by the value's name
};

// Dropout masks of adapters' inputs (docs/noise.md, "Dropout"), generated for each call of a program.
class DropoutInputs {
 public:
  explicit DropoutInputs(double share) : share_(share) {}

  // Return the mask for input `value`, shape (rows, length, in), of the adapter with second matrix `slot`: ones if the
  // scalars drop nothing, and in rows beyond `examples`. Valid until the next request for the value.
  const float* values(const ValueSpec& value, const SlotSpec& slot, const CallScalars* scalars,
                      const std::vector<uint32_t>* examples);

 private:
  struct Made {
    bool ones = false;
    std::vector<float> values;
  };
  double share_;
  std::map<std::string, Made> made_;  // by the value's name
};

}  // namespace zoexport
