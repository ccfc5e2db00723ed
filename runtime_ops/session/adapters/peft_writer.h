// An adapter in PEFT's form, as peft_reader.h reads it.
#pragma once

#include <string>
#include <vector>

#include "session/adapters/adapter.h"
#include "session/result.h"

namespace zoexport {

// Writes the folder `path`: adapter_config.json, which is `description`, and adapter_model.safetensors, whose bytes are those of
// the library safetensors. See Output for `replace`.
Status write_peft(const std::vector<AdapterLayer>& layers, const std::string& description, const std::string& path,
                  bool replace);

}  // namespace zoexport
