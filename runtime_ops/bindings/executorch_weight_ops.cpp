// The operators of namespace zoexport that read weights and tables; exporter/zoexport/ir/op_schemas.py states the same schemas.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "../kernels/int4.h"
#include "executorch_support.h"

namespace zoexport {
namespace {

using namespace ops;

// The packed matrix of codes uint8 (N, K/2) and scales bfloat16 (N, K/G), or nothing where they do not fit.
std::optional<kernels::Int4Matrix> as_int4(const Tensor& codes, const Tensor& scales) {
  if (!is_dense(codes, ScalarType::Byte) || !is_dense(scales, ScalarType::BFloat16) || codes.dim() != 2 ||
      scales.dim() != 2 || codes.size(0) != scales.size(0) || scales.size(1) < 1) {
    return std::nullopt;
  }
  const size_t K = 2 * static_cast<size_t>(codes.size(1));
  const size_t groups = static_cast<size_t>(scales.size(1));
  const kernels::Int4Matrix matrix{
      codes.const_data_ptr<uint8_t>(),
      static_cast<const uint16_t*>(scales.const_data_ptr()),
      static_cast<size_t>(codes.size(0)),
      K,
      K / groups};
  if (K % groups != 0 || !kernels::int4_valid(matrix)) {
    return std::nullopt;
  }
  return matrix;
}

constexpr const char* kPackedRule =
    "codes must be uint8 (N, K/2), scales bfloat16 (N, K/G), G a multiple of 32 that divides K";

Tensor& linear_int4_out(
    KernelRuntimeContext& ctx,
    const Tensor& x,
    const Tensor& codes,
    const Tensor& scales,
    const std::optional<Tensor>& bias,
    Tensor& out) {
  const std::optional<kernels::Int4Matrix> weight = as_int4(codes, scales);
  ZO_CHECK(ctx, weight.has_value(), out, kPackedRule);
  ZO_CHECK(
      ctx,
      is_dense(x, ScalarType::Float) && x.dim() >= 1 &&
          static_cast<size_t>(x.size(x.dim() - 1)) == weight->K,
      out,
      "x must be dense float32 (..., K)");
  ZO_CHECK(
      ctx,
      !bias.has_value() ||
          (is_dense(*bias, ScalarType::Float) && static_cast<size_t>(bias->numel()) == weight->N),
      out,
      "bias must be float32 (N)");
  ZO_CHECK(
      ctx,
      resize(out, std::nullopt, x, 1, static_cast<SizesType>(weight->N)) &&
          is_dense(out, ScalarType::Float),
      out,
      "out must be float32 with room for (..., N)");
  const size_t T = static_cast<size_t>(x.numel()) / weight->K;
  const float* in = x.const_data_ptr<float>();
  const float* added = bias.has_value() ? bias->const_data_ptr<float>() : nullptr;
  float* y = out.mutable_data_ptr<float>();
  // Work is dealt in fours of columns, the tile of the kernel.
  const bool ran = parallel((weight->N + 3) / 4, 16, [&](size_t begin, size_t end) {
    kernels::linear_int4_columns(in, T, *weight, added, 4 * begin, std::min(4 * end, weight->N), y);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

Tensor& embedding_int4_out(
    KernelRuntimeContext& ctx,
    const Tensor& codes,
    const Tensor& scales,
    const Tensor& indices,
    Tensor& out) {
  const std::optional<kernels::Int4Matrix> table = as_int4(codes, scales);
  ZO_CHECK(ctx, table.has_value(), out, kPackedRule);
  ZO_CHECK(ctx, is_dense(indices, ScalarType::Long), out, "indices must be dense int64");
  ZO_CHECK(
      ctx,
      resize(out, std::nullopt, indices, 0, static_cast<SizesType>(table->K)) &&
          is_dense(out, ScalarType::Float),
      out,
      "out must be float32 with room for (..., K)");
  const bool done = kernels::embedding_int4(
      *table,
      indices.const_data_ptr<int64_t>(),
      static_cast<size_t>(indices.numel()),
      out.mutable_data_ptr<float>());
  ZO_CHECK(ctx, done, out, "every index must be in [0, N)");
  return out;
}

Tensor& first_positions_out(
    KernelRuntimeContext& ctx,
    const Tensor& table,
    const Tensor& tokens,
    int64_t first,
    int64_t count,
    bool merge,
    Tensor& out) {
  ZO_CHECK(
      ctx,
      executorch::runtime::tensor_is_contiguous(table) && out.scalar_type() == table.scalar_type(),
      out,
      "table must be dense, out of its type");
  ZO_CHECK(ctx, tokens.dim() == 2, out, "tokens must be (rows, s)");
  ZO_CHECK(
      ctx,
      (count == 1 || count == 2) && first >= (merge ? 1 : 0) && first + count <= table.dim(),
      out,
      "one or two axes of the table");
  const SizesType length = tokens.sizes()[1];
  std::array<SizesType, kMaxDim> sizes{};
  size_t outer = 1, inner = static_cast<size_t>(table.element_size());
  size_t rank = 0;
  for (int64_t axis = 0; axis < table.dim(); ++axis) {
    const SizesType size = table.sizes()[axis];
    const bool cut = axis >= first && axis < first + count;
    ZO_CHECK(ctx, !cut || length <= size, out, "rows must not be longer than the table");
    if (merge && axis == first) {
      sizes[rank - 1] *= length;
    } else {
      sizes[rank++] = cut ? length : size;
    }
    if (axis < first) {
      outer *= static_cast<size_t>(size);
    } else if (!cut) {
      inner *= static_cast<size_t>(size);
    }
  }
  ZO_CHECK(
      ctx,
      executorch::runtime::resize_tensor(out, ArrayRef<SizesType>(sizes.data(), rank)) == Error::Ok,
      out,
      "out must have room for the cut table");
  const size_t whole = static_cast<size_t>(table.sizes()[first]);
  const size_t kept = static_cast<size_t>(length);
  const size_t whole_row = inner * (count == 2 ? static_cast<size_t>(table.sizes()[first + 1]) : 1);
  const size_t kept_row = inner * (count == 2 ? kept : 1);
  const char* in = static_cast<const char*>(table.const_data_ptr());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  for (size_t o = 0; o < outer; ++o) {
    for (size_t row = 0; row < kept; ++row) {
      std::memcpy(to, in + (o * whole + row) * whole_row, kept_row);
      to += kept_row;
    }
  }
  return out;
}

EXECUTORCH_LIBRARY(zoexport, "linear_int4.out", linear_int4_out);
EXECUTORCH_LIBRARY(zoexport, "embedding_int4.out", embedding_int4_out);
EXECUTORCH_LIBRARY(zoexport, "first_positions.out", first_positions_out);

} // namespace
} // namespace zoexport
