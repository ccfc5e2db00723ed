// Shaders of row programs, as SPIR-V that is written when a program is loaded.
#pragma once

#include <cstdint>
#include <vector>

namespace zoexport {
namespace vulkan {

// The shader of a row program's phases, which a program file's reader has checked and laid out (row_call.h): the functions of
// shaders/row_parts.comp, with a `main` that calls them. `has_halves`: some of its tensors are of fp16.
std::vector<uint32_t> row_module(const std::vector<uint32_t>& phases, bool has_halves);

}  // namespace vulkan
}  // namespace zoexport
