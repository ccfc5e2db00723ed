#include "engines/vulkan/shaders.h"

namespace zoexport {
namespace vulkan {
namespace {

// Each is a list of words.
#include "attention.h"
#include "attention_gradient.h"
#include "attention_gradient_half.h"
#include "attention_half.h"
#include "labels.h"
#include "labels_half.h"
#include "product.h"
#include "product_half.h"
#include "row_parts.h"
#include "row_parts_half.h"
#include "unpack.h"
#include "unpack_half.h"

template <size_t kWords, size_t kHalfWords>
ShaderCode one_of(bool has_halves, const uint32_t (&words)[kWords], const uint32_t (&half_words)[kHalfWords]) {
  return has_halves ? ShaderCode{half_words, kHalfWords} : ShaderCode{words, kWords};
}

}  // namespace

ShaderCode shader_code(Shader shader, bool has_halves) {
  switch (shader) {
    case Shader::kProduct:
      return one_of(has_halves, product_words, product_half_words);
    case Shader::kUnpack:
      return one_of(has_halves, unpack_words, unpack_half_words);
    case Shader::kRows:
      return one_of(has_halves, row_parts_words, row_parts_half_words);
    case Shader::kAttention:
      return one_of(has_halves, attention_words, attention_half_words);
    case Shader::kAttentionGradient:
      return one_of(has_halves, attention_gradient_words, attention_gradient_half_words);
    case Shader::kLabels:
      return one_of(has_halves, labels_words, labels_half_words);
  }
  return {nullptr, 0};
}

}  // namespace vulkan
}  // namespace zoexport
