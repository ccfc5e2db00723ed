// The operators of namespace zoexport that read tables; exporter/zoexport/ir/ops.py declares them.

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

const bool registered[] = {
    register_operator<embedding_int4_out>("zoexport::embedding_int4.out"),
};

}  // namespace
}  // namespace zoexport
