// The dtypes of session.h, ZO_FLOAT32 and so on, as manifests and safetensors name them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace zoexport {

// Bytes of one element.
size_t dtype_bytes(int32_t dtype);

// Return the manifest's name of a dtype: "float32" and so on.
const char* dtype_text(int32_t dtype);
// The dtype of such a word; -1 for another.
int32_t dtype_from_text(const std::string& text);
// All the words, for messages.
std::string dtype_texts();

// "F32" and so on.
const char* safetensors_dtype(int32_t dtype);

}  // namespace zoexport
