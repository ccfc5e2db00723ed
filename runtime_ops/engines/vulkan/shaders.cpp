#include "engines/vulkan/shaders.h"

#include <iterator>

namespace zoexport {
namespace vulkan {
namespace {

// Each is a list of words.
#include "attention.h"
#include "attention_gradient.h"
#include "labels.h"
#include "product.h"
#include "row_parts.h"
#include "unpack.h"

}  // namespace

ShaderCode shader_code(Shader shader) {
  switch (shader) {
    case Shader::kProduct:
      return {product_words, std::size(product_words)};
    case Shader::kUnpack:
      return {unpack_words, std::size(unpack_words)};
    case Shader::kRows:
      return {row_parts_words, std::size(row_parts_words)};
    case Shader::kAttention:
      return {attention_words, std::size(attention_words)};
    case Shader::kAttentionGradient:
      return {attention_gradient_words, std::size(attention_gradient_words)};
    case Shader::kLabels:
      return {labels_words, std::size(labels_words)};
  }
  return {nullptr, 0};
}

}  // namespace vulkan
}  // namespace zoexport
