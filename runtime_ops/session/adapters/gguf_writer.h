// An adapter for llama.cpp: one GGUF file, as its convert_lora_to_gguf.py writes it (docs/export.md).
#pragma once

#include <string>
#include <vector>

#include "session/adapters/adapter.h"
#include "session/result.h"

namespace zoexport {

// Dtype of a GGUF file's values. Rows of Q8_0 that are no multiple of 32 are F16.
enum { ZO_OUTTYPE_F32 = 0, ZO_OUTTYPE_F16 = 1, ZO_OUTTYPE_Q8_0 = 2 };

struct GgufSettings {
  std::string architecture;  // of the base model, by llama.cpp's name
  std::string base_model;    // its own name; empty: the file has none
  float alpha = 0;
  int32_t outtype = 0;  // ZO_OUTTYPE_*
};

// Write the file `path`, with the same bytes as the package gguf. Layers need their llama.cpp names. For q8_0, rows of
// a length that is not a multiple of 32 are f16; numbers beyond float16 are refused there. See Output for `replace`.
Status write_gguf(const std::vector<AdapterLayer>& layers, const GgufSettings& settings, const std::string& path,
                  bool replace);

}  // namespace zoexport
