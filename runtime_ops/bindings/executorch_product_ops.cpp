// The matrix products of namespace zoexport; exporter/zoexport/ir/product_ops.py declares them.

#include <algorithm>
#include <array>
#include <optional>

#include "../kernels/rounded.h"
#include "../kernels/scratch.h"
#include "executorch_weights.h"

namespace zoexport {
namespace {

using namespace ops;

// bf16: whether numbers are rounded to it before they are multiplied.
template <typename Matrix>
Tensor& linear_out(KernelRuntimeContext& ctx, const Tensor& x, const Matrix& weight, const std::optional<Tensor>& bias,
                   Tensor& out, bool bf16) {
  const char* misfit = linear_misfit(x, weight, bias, out);
  ZO_CHECK(ctx, misfit == nullptr, out, misfit);
  if (out.numel() == 0) {
    return out;
  }
  const auto* const from = x.const_data_ptr<float>();
  auto* const y = out.mutable_data_ptr<float>();
  const bool ran = without_last_zeros(from, rows_of(x), weight.K, floats_of(bias), weight.N, y, [&](size_t rows) {
    kernels::Product product = kernels::linear(from, rows, weight, floats_of(bias), y);
    product.bf16 = bf16;
    return run(product);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

template <typename Matrix>
Tensor& input_gradient_out(KernelRuntimeContext& ctx, const Tensor& dy, const Matrix& weight, Tensor& out, bool bf16) {
  ZO_CHECK(ctx, has_rows(dy, weight.N), out, "dy must be dense float32 (..., N)");
  ZO_CHECK(ctx, resize(out, std::nullopt, dy, 1, static_cast<SizesType>(weight.K)) && is_dense(out, ScalarType::Float),
           out, "out must be float32 with room for (..., K)");
  if (out.numel() == 0) {
    return out;
  }
  const auto* const from = dy.const_data_ptr<float>();
  auto* const dx = out.mutable_data_ptr<float>();
  const bool ran = without_last_zeros(from, rows_of(dy), weight.N, nullptr, weight.K, dx, [&](size_t rows) {
    kernels::Product product = kernels::linear_input_gradient(from, rows, weight, dx);
    product.bf16 = bf16;
    return run(product);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

template <bool kBf16>
Tensor& linear_int4_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes, const Tensor& scales,
                        const std::optional<Tensor>& bias, Tensor& out) {
  const std::optional<kernels::Int4Matrix> weight = as_int4(codes, scales);
  ZO_CHECK(ctx, weight.has_value(), out, kInt4Rule);
  return linear_out(ctx, x, *weight, bias, out, kBf16);
}

// A layer of those that read the same rows.
struct RoundedLayer {
  const Tensor& codes;
  const Tensor& scales;
  const std::optional<Tensor>& bias;
  Tensor& out;
};

// Return memory for the dynamic int8 activations, for any number of layers that read them.
float* rounded_rows_memory(size_t floats) {
  static thread_local kernels::Scratch scratch;
  return scratch.floats(floats);
}

template <size_t Count>
void rounded_linears(KernelRuntimeContext& ctx, const Tensor& x, const RoundedLayer (&layers)[Count]) {
  std::array<kernels::RoundedLinear, Count> products;
  for (size_t i = 0; i < Count; ++i) {
    const RoundedLayer& layer = layers[i];
    const float* const bias = floats_of(layer.bias);
    if (const auto bytes = as_int8(layer.codes, layer.scales); bytes.has_value()) {
      ZO_CHECK(ctx, bytes->K % kernels::kRoundedGroup == 0, , "K must be a multiple of 32");
      const char* misfit = linear_misfit(x, *bytes, layer.bias, layer.out);
      ZO_CHECK(ctx, misfit == nullptr, , misfit);
      products[i] = kernels::rounded_linear(*bytes, bias, layer.out.mutable_data_ptr<float>());
      continue;
    }
    const std::optional<kernels::Int4Matrix> weight = as_int4(layer.codes, layer.scales);
    ZO_CHECK(ctx, weight.has_value(), , kInt4Rule);
    const char* misfit = linear_misfit(x, *weight, layer.bias, layer.out);
    ZO_CHECK(ctx, misfit == nullptr, , misfit);
    products[i] = {{}, *weight, bias, layer.out.mutable_data_ptr<float>()};
  }
  const size_t rows = rows_of(x), depth = products[0].weight.K;
  const auto* const from = x.const_data_ptr<float>();
  const size_t used = rows_before_zeros(from, rows, depth);
  for (const kernels::RoundedLinear& product : products) {
    fill_with_bias(product.bias, used, rows, product.weight.N, product.y);
  }
  if (used == 0) {
    return;
  }
  float* memory = rounded_rows_memory(kernels::rounded_floats(used, depth));
  ET_KERNEL_CHECK(ctx, memory != nullptr, MemoryAllocationFailed, );
  const kernels::RoundedRows rounded = kernels::rounded_in(memory, used, depth);
  for (kernels::RoundedLinear& product : products) {
    product.x = rounded;
  }
  const bool ran = run(kernels::RoundRows{from, rounded}) && run(kernels::RoundedLinears{products.data(), Count});
  ET_KERNEL_CHECK(ctx, ran, Internal, );
}

void rounded_linear_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes, const Tensor& scales,
                        const std::optional<Tensor>& bias, Tensor& out) {
  rounded_linears(ctx, x, {{codes, scales, bias, out}});
}

void rounded_linears_2_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes_1, const Tensor& scales_1,
                           const std::optional<Tensor>& bias_1, const Tensor& codes_2, const Tensor& scales_2,
                           const std::optional<Tensor>& bias_2, Tensor& out_1, Tensor& out_2) {
  rounded_linears(ctx, x, {{codes_1, scales_1, bias_1, out_1}, {codes_2, scales_2, bias_2, out_2}});
}

void rounded_linears_3_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes_1, const Tensor& scales_1,
                           const std::optional<Tensor>& bias_1, const Tensor& codes_2, const Tensor& scales_2,
                           const std::optional<Tensor>& bias_2, const Tensor& codes_3, const Tensor& scales_3,
                           const std::optional<Tensor>& bias_3, Tensor& out_1, Tensor& out_2, Tensor& out_3) {
  rounded_linears(
      ctx, x,
      {{codes_1, scales_1, bias_1, out_1}, {codes_2, scales_2, bias_2, out_2}, {codes_3, scales_3, bias_3, out_3}});
}

template <bool kBf16>
Tensor& linear_int8_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes, const Tensor& scales,
                        const std::optional<Tensor>& bias, Tensor& out) {
  const std::optional<kernels::Int8Matrix> weight = as_int8(codes, scales);
  ZO_CHECK(ctx, weight.has_value(), out, kInt8Rule);
  return linear_out(ctx, x, *weight, bias, out, kBf16);
}

template <bool kBf16>
Tensor& linear_int4_input_gradient_out(KernelRuntimeContext& ctx, const Tensor& dy, const Tensor& codes,
                                       const Tensor& scales, Tensor& out) {
  const std::optional<kernels::Int4Matrix> weight = as_int4(codes, scales);
  ZO_CHECK(ctx, weight.has_value(), out, kInt4Rule);
  return input_gradient_out(ctx, dy, *weight, out, kBf16);
}

template <bool kBf16>
Tensor& linear_int8_input_gradient_out(KernelRuntimeContext& ctx, const Tensor& dy, const Tensor& codes,
                                       const Tensor& scales, Tensor& out) {
  const std::optional<kernels::Int8Matrix> weight = as_int8(codes, scales);
  ZO_CHECK(ctx, weight.has_value(), out, kInt8Rule);
  return input_gradient_out(ctx, dy, *weight, out, kBf16);
}

Tensor& product_out(KernelRuntimeContext& ctx, const Tensor* before, const Tensor& a, const Tensor& b, bool transpose_a,
                    bool transpose_b, Tensor& out) {
  const ssize_t rank = a.dim();
  ZO_CHECK(
      ctx,
      is_dense(a, ScalarType::Float) && is_dense(b, ScalarType::Float) && rank >= 2 && rank <= 4 && b.dim() == rank,
      out, "a and b must be dense float32 of the same rank, 2 to 4");
  std::array<SizesType, 4> sizes{};
  size_t batches = 1;
  for (ssize_t axis = 0; axis + 2 < rank; ++axis) {
    ZO_CHECK(ctx, a.size(axis) == b.size(axis), out, "a and b must have the same leading sizes");
    sizes[static_cast<size_t>(axis)] = a.sizes()[axis];
    batches *= static_cast<size_t>(a.size(axis));
  }
  const SizesType rows = a.sizes()[transpose_a ? rank - 1 : rank - 2];
  const SizesType depth = a.sizes()[transpose_a ? rank - 2 : rank - 1];
  const SizesType columns = b.sizes()[transpose_b ? rank - 2 : rank - 1];
  ZO_CHECK(ctx, b.sizes()[transpose_b ? rank - 1 : rank - 2] == depth, out,
           "the columns of op(a) must be as many as the rows of op(b)");
  sizes[static_cast<size_t>(rank - 2)] = rows;
  sizes[static_cast<size_t>(rank - 1)] = columns;
  const ArrayRef<SizesType> shape(sizes.data(), static_cast<size_t>(rank));
  ZO_CHECK(ctx,
           before == nullptr || (is_dense(*before, ScalarType::Float) && before->dim() == rank &&
                                 std::equal(shape.begin(), shape.end(), before->sizes().begin())),
           out, "what is added to must be dense float32 of the product's shape");
  ZO_CHECK(ctx, executorch::runtime::resize_tensor(out, shape) == Error::Ok && is_dense(out, ScalarType::Float), out,
           "out must be float32 with room for the product");
  if (out.numel() == 0) {
    return out;
  }
  const auto* const from = a.const_data_ptr<float>();
  auto* const c = out.mutable_data_ptr<float>();
  const auto all = static_cast<size_t>(rows), width = static_cast<size_t>(columns), sums = static_cast<size_t>(depth);
  const auto multiply = [&](size_t count) {
    kernels::Product product =
        kernels::matmul(from, b.const_data_ptr<float>(), batches, count, width, sums, transpose_a, transpose_b, c);
    product.before = before == nullptr ? nullptr : before->const_data_ptr<float>();
    return run(product);
  };
  const bool is_linear = batches == 1 && !transpose_a && before == nullptr;
  const bool ran = is_linear ? without_last_zeros(from, all, sums, nullptr, width, c, multiply) : multiply(all);
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

Tensor& matmul_out(KernelRuntimeContext& ctx, const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b,
                   Tensor& out) {
  return product_out(ctx, nullptr, a, b, transpose_a, transpose_b, out);
}

Tensor& add_matmul_out(KernelRuntimeContext& ctx, const Tensor& c, const Tensor& a, const Tensor& b, bool transpose_a,
                       bool transpose_b, Tensor& out) {
  return product_out(ctx, &c, a, b, transpose_a, transpose_b, out);
}

const bool registered[] = {
    register_operator<linear_int4_out<false>>("zoexport::linear_int4.out"),
    register_operator<linear_int4_out<true>>("zoexport::linear_int4_bf16.out"),
    register_operator<rounded_linear_out>("zoexport::rounded_linear.out"),
    register_operator<rounded_linears_2_out>("zoexport::rounded_linears_2.out"),
    register_operator<rounded_linears_3_out>("zoexport::rounded_linears_3.out"),
    register_operator<linear_int4_input_gradient_out<false>>("zoexport::linear_int4_input_gradient.out"),
    register_operator<linear_int4_input_gradient_out<true>>("zoexport::linear_int4_bf16_input_gradient.out"),
    register_operator<linear_int8_out<false>>("zoexport::linear_int8.out"),
    register_operator<linear_int8_out<true>>("zoexport::linear_int8_bf16.out"),
    register_operator<linear_int8_input_gradient_out<false>>("zoexport::linear_int8_input_gradient.out"),
    register_operator<linear_int8_input_gradient_out<true>>("zoexport::linear_int8_bf16_input_gradient.out"),
    register_operator<matmul_out>("zoexport::matmul.out"),
    register_operator<add_matmul_out>("zoexport::add_matmul.out"),
};

}  // namespace
}  // namespace zoexport
