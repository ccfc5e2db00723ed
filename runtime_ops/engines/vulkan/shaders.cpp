#include "engines/vulkan/shaders.h"

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
      return {product_words, sizeof(product_words)};
    case Shader::kUnpack:
      return {unpack_words, sizeof(unpack_words)};
    case Shader::kRows:
      return {row_parts_words, sizeof(row_parts_words)};
    case Shader::kAttention:
      return {attention_words, sizeof(attention_words)};
    case Shader::kAttentionGradient:
      return {attention_gradient_words, sizeof(attention_gradient_words)};
    case Shader::kLabels:
      return {labels_words, sizeof(labels_words)};
  }
  return {nullptr, 0};
}

}  // namespace vulkan
}  // namespace zoexport
