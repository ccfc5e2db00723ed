// Quantized weights as the operators of namespace zoexport receive them, and products with them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "../kernels/products.h"
#include "executorch_support.h"

namespace zoexport::ops {

inline constexpr const char* kInt4Rule =
    "codes must be uint8 (N, K/2), scales bfloat16 (N, K/G), G a multiple of 32 that divides K; of experts (E, N, ...)";

// Return whether the first axes of codes and scales are equal, those of a matrix or, of rank 3, of one for each expert.
inline bool is_packed(const Tensor& codes, const Tensor& scales, ssize_t rank) {
  return codes.dim() == rank && std::equal(codes.sizes().begin(), codes.sizes().end() - 1, scales.sizes().begin());
}

// The packed matrix of codes and scales, of rank 3 the first expert's, or nothing where they do not fit.
inline std::optional<kernels::Int4Matrix> as_int4(const Tensor& codes, const Tensor& scales, ssize_t rank = 2) {
  if (!is_dense(codes, ScalarType::Byte) || !is_dense(scales, ScalarType::BFloat16) || scales.dim() != rank ||
      !is_packed(codes, scales, rank) || scales.size(rank - 1) < 1) {
    return std::nullopt;
  }
  const size_t K = 2 * static_cast<size_t>(codes.size(rank - 1));
  const size_t groups = static_cast<size_t>(scales.size(rank - 1));
  const kernels::Int4Matrix matrix{codes.const_data_ptr<uint8_t>(),
                                   static_cast<const uint16_t*>(scales.const_data_ptr()),
                                   static_cast<size_t>(codes.size(rank - 2)), K, K / groups};
  if (K % groups != 0 || !kernels::int4_valid(matrix)) {
    return std::nullopt;
  }
  return matrix;
}

inline constexpr const char* kInt8Rule = "codes must be int8 (N, K), scales float32 (N); of experts (E, N, ...)";

inline std::optional<kernels::Int8Matrix> as_int8(const Tensor& codes, const Tensor& scales, ssize_t rank = 2) {
  if (!is_dense(codes, ScalarType::Char) || !is_dense(scales, ScalarType::Float) || scales.dim() != rank - 1 ||
      !is_packed(codes, scales, rank)) {
    return std::nullopt;
  }
  return kernels::Int8Matrix{codes.const_data_ptr<int8_t>(), scales.const_data_ptr<float>(),
                             static_cast<size_t>(codes.size(rank - 2)), static_cast<size_t>(codes.size(rank - 1))};
}

// x (..., width) dense float32.
inline bool has_rows(const Tensor& x, size_t width) {
  return is_dense(x, ScalarType::Float) && x.dim() >= 1 && static_cast<size_t>(x.size(x.dim() - 1)) == width;
}

// Resizes `out` for a linear layer. Returns the rule that its arguments break, or null.
template <typename Matrix>
const char* linear_misfit(const Tensor& x, const Matrix& weight, const std::optional<Tensor>& bias, Tensor& out) {
  if (!has_rows(x, weight.K)) {
    return "x must be dense float32 (..., K)";
  }
  if (bias.has_value() && !(is_dense(*bias, ScalarType::Float) && static_cast<size_t>(bias->numel()) == weight.N)) {
    return "bias must be float32 (N)";
  }
  if (!resize(out, std::nullopt, x, 1, static_cast<SizesType>(weight.N)) || !is_dense(out, ScalarType::Float)) {
    return "out must be float32 with room for (..., N)";
  }
  return nullptr;
}

inline const float* floats_of(const std::optional<Tensor>& bias) {
  return bias.has_value() ? bias->const_data_ptr<float>() : nullptr;
}

// Runs a product of kernels/ on the runtime's threads; false where they or the memory were refused.
template <typename AnyProduct>
bool run(const AnyProduct& product) {
  return run_all(kernels::tasks_of(product),
                 [&](size_t begin, size_t end) { return kernels::run_tasks(product, begin, end); });
}

}  // namespace zoexport::ops
