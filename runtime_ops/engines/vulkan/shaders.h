// The shaders as SPIR-V, which the build compiles from shaders/*.comp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engines/vulkan/program_file.h"

namespace zoexport {
namespace vulkan {

struct ShaderCode {
  const uint32_t* words;
  size_t count;
};

// `has_halves`: the one for tensors of fp16.
ShaderCode shader_code(Shader shader, bool has_halves);

}  // namespace vulkan
}  // namespace zoexport
