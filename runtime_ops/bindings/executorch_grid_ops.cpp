// Linear layers over trained integers, of namespace zoexport; exporter/zoexport/ir/grid_ops.py declares them.

#include <optional>

#include "../kernels/grid.h"
#include "executorch_weights.h"

namespace zoexport {
namespace {

using namespace ops;

// Arguments of an operator other than those of its product.
struct Noise {
  const Tensor& table;
  const Tensor& number;
  const Tensor& epsilon;
  const Tensor& seed;
  const Tensor& step;
  int64_t queries;
};

// Return the pairs of int32 (2^t, 2), or nothing if it is no such table.
std::optional<kernels::PairTable> as_pair_table(const Tensor& table) {
  if (!is_dense(table, ScalarType::Int) || table.dim() != 2 || table.size(1) != 2) {
    return std::nullopt;
  }
  for (uint32_t log2_size = 3; log2_size <= 10; ++log2_size) {
    if (table.size(0) == ssize_t{1} << log2_size) {
      return kernels::PairTable{table.const_data_ptr<int32_t>(), log2_size};
    }
  }
  return std::nullopt;
}

template <typename Matrix>
Tensor& grid_linear_out(KernelRuntimeContext& ctx, const Tensor& x, const Matrix& weight,
                        const std::optional<Tensor>& bias, const Noise& noise, Tensor& out) {
  const std::optional<kernels::PairTable> table = as_pair_table(noise.table);
  ZO_CHECK(ctx, table.has_value(), out, "table must be int32 (2^t, 2), t from 3 to 10");
  const std::optional<uint32_t> number = as_u32(noise.number);
  ZO_CHECK(ctx, number.has_value() && *number < rng::kRounding, out, "number must be int64 (1) in [0, 2^31)");
  ZO_CHECK(ctx, is_one(noise.epsilon, ScalarType::Float), out, "epsilon must be float32 (1)");
  ZO_CHECK(ctx, is_one(noise.seed, ScalarType::Long), out, "seed must be int64 (1)");
  const std::optional<uint32_t> step = as_u32(noise.step);
  ZO_CHECK(ctx, step.has_value(), out, "step must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, noise.queries >= 1 && noise.queries <= (1 << 20), out, "queries must be in [1, 2^20]");
  const char* misfit = linear_misfit(x, weight, bias, out);
  ZO_CHECK(ctx, misfit == nullptr, out, misfit);
  if (out.numel() == 0) {
    return out;
  }
  const kernels::GridLinear product{x.const_data_ptr<float>(),
                                    rows_of(x),
                                    weight,
                                    floats_of(bias),
                                    *table,
                                    as_seed(noise.seed),
                                    *step,
                                    *number,
                                    static_cast<uint32_t>(noise.queries),
                                    out.mutable_data_ptr<float>()};
  if (*noise.epsilon.const_data_ptr<float>() == 0.0f) {
    ET_KERNEL_CHECK(ctx, run(kernels::linear(product.x, product.rows, weight, product.bias, product.y)), Internal, out);
    return out;
  }
  ZO_CHECK(ctx, kernels::grid_rows_fit(product), out, "the rows must be 2 * queries copies where epsilon is not 0");
  ET_KERNEL_CHECK(ctx, run(product), Internal, out);
  return out;
}

Tensor& grid_linear_int4_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes, const Tensor& scales,
                             const std::optional<Tensor>& bias, const Tensor& table, const Tensor& number,
                             const Tensor& epsilon, const Tensor& seed, const Tensor& step, int64_t queries,
                             Tensor& out) {
  const std::optional<kernels::Int4Matrix> weight = as_int4(codes, scales);
  ZO_CHECK(ctx, weight.has_value(), out, kInt4Rule);
  return grid_linear_out(ctx, x, *weight, bias, {table, number, epsilon, seed, step, queries}, out);
}

Tensor& grid_linear_int8_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes, const Tensor& scales,
                             const std::optional<Tensor>& bias, const Tensor& table, const Tensor& number,
                             const Tensor& epsilon, const Tensor& seed, const Tensor& step, int64_t queries,
                             Tensor& out) {
  const std::optional<kernels::Int8Matrix> weight = as_int8(codes, scales);
  ZO_CHECK(ctx, weight.has_value(), out, kInt8Rule);
  return grid_linear_out(ctx, x, *weight, bias, {table, number, epsilon, seed, step, queries}, out);
}

const bool registered[] = {
    register_operator<grid_linear_int4_out>("zoexport::grid_linear_int4.out"),
    register_operator<grid_linear_int8_out>("zoexport::grid_linear_int8.out"),
};

}  // namespace
}  // namespace zoexport
