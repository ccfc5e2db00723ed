// An adapter in PEFT's form: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "session/adapters/peft_scaling.h"
#include "session/manifest/manifest.h"
#include "session/result.h"

namespace zoexport {

// Adapter-wide settings of an adapter's description.
struct PeftSettings {
  PeftScaling scaling;
  std::string base_model;  // empty if not given
};

// The name of the description, of an adapter and of a bundle's own.
inline constexpr char kPeftConfig[] = "adapter_config.json";
inline constexpr char kPeftWeights[] = "adapter_model.safetensors";

// PEFT's name of a layer's matrix, "lora_A" or "lora_B".
std::string peft_key(const std::string& half, const std::string& module);

// The settings of a bundle's own description.
Result<PeftSettings> read_peft_settings(const std::string& text, const std::string& where);

// Passes every slot of `wanted`, by its place there and as float32, to `take`, once all of the adapter was found to fit: its layers'
// scales are those of `own`, and it has these slots, which are matrices, of their sizes, and nothing else.
Status read_peft(const std::string& folder, const PeftSettings& own, const std::vector<SlotSpec>& wanted,
                 const std::function<Status(size_t slot, const float* values)>& take);

}  // namespace zoexport
