// The sparse product of namespace zoexport; exporter/zoexport/ir/sparse_ops.py declares it.

#include <optional>

#include "../kernels/sparse.h"
#include "executorch_support.h"

namespace zoexport {
namespace {

using namespace ops;

// Return whether x (..., K) is dense float32 and has the rows of y (..., N).
bool have_same_rows(const Tensor& y, const Tensor& x) {
  if (!is_dense(y, ScalarType::Float) || !is_dense(x, ScalarType::Float) || y.dim() < 1 || y.dim() != x.dim()) {
    return false;
  }
  for (ssize_t axis = 0; axis + 1 < y.dim(); ++axis) {
    if (y.size(axis) != x.size(axis)) {
      return false;
    }
  }
  return true;
}

Tensor& sparse_add_mm_out(KernelRuntimeContext& ctx, const Tensor& y, const Tensor& x, const Tensor& values,
                          const Tensor& places, const Tensor& range, const Tensor& epsilon, const Tensor& seed,
                          const Tensor& step, int64_t tensor_id, int64_t queries, int64_t most, Tensor& out) {
  ZO_CHECK(ctx, have_same_rows(y, x), out, "y must be dense float32 (..., N), x (..., K) with as many rows");
  ZO_CHECK(ctx,
           is_dense(values, ScalarType::Half) && values.dim() == 1 && is_dense(places, ScalarType::Int) &&
               places.dim() == 1 && places.numel() == values.numel(),
           out, "values must be float16 (S), places int32 (S)");
  ZO_CHECK(ctx, is_dense(range, ScalarType::Long) && range.numel() == 2, out, "range must be int64 (2)");
  const int64_t begin = range.const_data_ptr<int64_t>()[0], end = range.const_data_ptr<int64_t>()[1];
  ZO_CHECK(ctx, begin >= 0 && begin <= end && end <= values.numel(), out, "range must lie in [0, S]");
  ZO_CHECK(ctx, end - begin <= most, out, "range must have no more than `most` entries");
  ZO_CHECK(ctx, is_one(epsilon, ScalarType::Float), out, "epsilon must be float32 (1)");
  ZO_CHECK(ctx, is_one(seed, ScalarType::Long), out, "seed must be int64 (1)");
  const std::optional<uint32_t> step_number = as_u32(step);
  ZO_CHECK(ctx, step_number.has_value(), out, "step must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, is_u32(tensor_id), out, "tensor_id must be in [0, 2^32)");
  ZO_CHECK(ctx, queries >= 1 && queries <= (1 << 20), out, "queries must be in [1, 2^20]");
  ZO_CHECK(ctx, resize(out, std::nullopt, y, 0, std::nullopt) && is_dense(out, ScalarType::Float), out,
           "out must be float32 with room for y");
  ZO_CHECK(ctx, is_apart(out, {&places}), out, "out must not lie in the memory of places");
  if (out.numel() == 0) {
    return out;
  }
  const kernels::SparseProduct product{rows_of(x),
                                       static_cast<size_t>(y.size(y.dim() - 1)),
                                       static_cast<size_t>(x.size(x.dim() - 1)),
                                       x.const_data_ptr<float>(),
                                       y.const_data_ptr<float>(),
                                       static_cast<const uint16_t*>(values.const_data_ptr()),
                                       places.const_data_ptr<int32_t>(),
                                       static_cast<size_t>(begin),
                                       static_cast<size_t>(end),
                                       *epsilon.const_data_ptr<float>(),
                                       as_seed(seed),
                                       *step_number,
                                       static_cast<uint32_t>(tensor_id),
                                       static_cast<uint32_t>(queries),
                                       out.mutable_data_ptr<float>()};
  ZO_CHECK(ctx, kernels::sparse_rows_fit(product), out, "the rows must be 2 * queries copies where epsilon is not 0");
  ZO_CHECK(ctx, kernels::sparse_places_fit(product), out, "places must ascend and lie in [0, N * K)");
  const kernels::SparseForm form = kernels::sparse_form(product);
  const bool ran = run_all(kernels::tasks_of(product),
                           [&](size_t first, size_t last) { return kernels::run_tasks(product, first, last, form); });
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

const bool registered[] = {
    register_operator<sparse_add_mm_out>("zoexport::sparse_add_mm.out"),
};

}  // namespace
}  // namespace zoexport
