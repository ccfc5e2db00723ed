// The operators of namespace zoexport that read tables; exporter/zoexport/ir/op_schemas.py states the same schemas.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "executorch_weights.h"

namespace zoexport {
namespace {

using namespace ops;

Tensor& embedding_int4_out(KernelRuntimeContext& ctx, const Tensor& codes, const Tensor& scales, const Tensor& indices,
                           Tensor& out) {
  const std::optional<kernels::Int4Matrix> table = as_int4(codes, scales);
  ZO_CHECK(ctx, table.has_value(), out, kInt4Rule);
  ZO_CHECK(ctx, is_dense(indices, ScalarType::Long), out, "indices must be dense int64");
  ZO_CHECK(ctx,
           resize(out, std::nullopt, indices, 0, static_cast<SizesType>(table->K)) && is_dense(out, ScalarType::Float),
           out, "out must be float32 with room for (..., K)");
  ZO_CHECK(ctx, is_apart(out, {&indices}), out, "out must not lie in the memory of indices");
  const bool done = kernels::embedding_int4(*table, indices.const_data_ptr<int64_t>(),
                                            static_cast<size_t>(indices.numel()), out.mutable_data_ptr<float>());
  ZO_CHECK(ctx, done, out, "every index must be in [0, N)");
  return out;
}

Tensor& first_positions_out(KernelRuntimeContext& ctx, const Tensor& table, const Tensor& tokens, int64_t first,
                            int64_t count, bool merge, Tensor& out) {
  ZO_CHECK(ctx, is_contiguous(table) && out.scalar_type() == table.scalar_type(), out,
           "table must be dense, out of its type");
  ZO_CHECK(ctx, tokens.dim() == 2, out, "tokens must be (rows, s)");
  ZO_CHECK(ctx, (count == 1 || count == 2) && first >= (merge ? 1 : 0) && first <= table.dim() - count, out,
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
      const int64_t merged = int64_t{sizes[rank - 1]} * length;
      ZO_CHECK(ctx, merged <= INT32_MAX, out, "merged axes must be at most 2^31 - 1");
      sizes[rank - 1] = static_cast<SizesType>(merged);
    } else {
      sizes[rank++] = cut ? length : size;
    }
    if (axis < first) {
      outer *= static_cast<size_t>(size);
    } else if (!cut) {
      inner *= static_cast<size_t>(size);
    }
  }
  ZO_CHECK(ctx, executorch::runtime::resize_tensor(out, ArrayRef<SizesType>(sizes.data(), rank)) == Error::Ok, out,
           "out must have room for the cut table");
  ZO_CHECK(ctx, is_apart(out, {&table}), out, "out must not lie in the memory of the table");
  if (out.numel() == 0) {
    return out;
  }
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

const bool registered[] = {
    register_operator<embedding_int4_out>("zoexport::embedding_int4.out"),
    register_operator<first_positions_out>("zoexport::first_positions.out"),
};

}  // namespace
}  // namespace zoexport
