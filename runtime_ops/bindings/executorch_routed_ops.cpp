// The products of namespace zoexport with the weights of experts that a router chose; exporter/zoexport/ir/product_ops.py
// declares them.

#include <algorithm>
#include <optional>

#include "../kernels/scratch.h"
#include "executorch_weights.h"

namespace zoexport {
namespace {

using namespace ops;

constexpr size_t kMostRows = 256;  // rows of an expert that are gathered at a time

// Weights of experts, each (N, K).
struct FloatExperts {
  const float* values;  // (count, N, K)
  size_t count, N, K;

  kernels::Product product(size_t expert, const float* x, size_t rows, bool transposed, float* y) const {
    const size_t width = transposed ? K : N, depth = transposed ? N : K;
    return kernels::matmul(x, values + expert * N * K, 1, rows, width, depth, false, !transposed, y);
  }
};

template <typename Matrix>
kernels::Product product_with(const Matrix& weight, const float* x, size_t rows, bool transposed, float* y) {
  return transposed ? kernels::linear_input_gradient(x, rows, weight, y) : kernels::linear(x, rows, weight, nullptr, y);
}

struct Int4Experts {
  kernels::Int4Matrix first;
  size_t count, N, K;

  kernels::Product product(size_t expert, const float* x, size_t rows, bool transposed, float* y) const {
    kernels::Int4Matrix weight = first;
    weight.codes += expert * N * (K / 2);
    weight.scales += expert * N * (K / first.group_size);
    return product_with(weight, x, rows, transposed, y);
  }
};

struct Int8Experts {
  kernels::Int8Matrix first;
  size_t count, N, K;

  kernels::Product product(size_t expert, const float* x, size_t rows, bool transposed, float* y) const {
    const kernels::Int8Matrix weight{first.codes + expert * N * K, first.scales + expert * N, N, K};
    return product_with(weight, x, rows, transposed, y);
  }
};

// Return memory for the gathered rows of an expert and their products.
float* gathered_rows_memory(size_t floats) {
  static thread_local kernels::Scratch scratch;
  return scratch.floats(floats);
}

// The rows of x and y by choice: choice c is experts[c / k][c % k].
struct Choices {
  const float* x;
  size_t used;    // choices before the tokens of zeros at the end
  size_t all;     // tokens * k
  size_t shared;  // choices that read the same row of x
  size_t depth, width;
  const int64_t* experts;
  float* y;

  const float* from(size_t choice) const { return x + choice / shared * depth; }
  float* to(size_t choice) const { return y + choice * width; }

  // Return the next choice of an expert at or after `choice`.
  size_t next(size_t choice, size_t expert) const {
    while (choice < used && experts[choice] != static_cast<int64_t>(expert)) {
      ++choice;
    }
    return choice;
  }
};

// Multiply the rows of one expert, as many at a time as there is memory for. False where threads or memory were refused.
template <typename Experts>
bool multiply(const Choices& choices, const Experts& weights, size_t expert, bool transposed, float* gathered,
              size_t most) {
  float* const products = gathered + most * choices.depth;
  for (size_t begin = choices.next(0, expert); begin < choices.used;) {
    size_t rows = 0, end = begin;
    for (size_t choice = begin; choice < choices.used && rows < most; choice = choices.next(choice + 1, expert)) {
      std::copy_n(choices.from(choice), choices.depth, gathered + rows++ * choices.depth);
      end = choice + 1;
    }
    if (!run(weights.product(expert, gathered, rows, transposed, products))) {
      return false;
    }
    size_t row = 0;
    for (size_t choice = begin; choice < end; choice = choices.next(choice + 1, expert)) {
      std::copy_n(products + row++ * choices.width, choices.width, choices.to(choice));
    }
    begin = choices.next(end, expert);
  }
  return true;
}

template <typename Experts>
Tensor& routed_out(KernelRuntimeContext& ctx, const Tensor& x, const Experts& weights, const Tensor& experts,
                   bool transposed, Tensor& out) {
  const size_t depth = transposed ? weights.N : weights.K, width = transposed ? weights.K : weights.N;
  ZO_CHECK(ctx, is_dense(experts, ScalarType::Long) && experts.dim() == 2, out, "experts must be int64 (tokens, k)");
  const size_t tokens = size_of(experts, 0), k = size_of(experts, 1);
  ZO_CHECK(ctx,
           has_rows(x, depth) && x.dim() == 3 && size_of(x, 0) == tokens && (size_of(x, 1) == k || size_of(x, 1) == 1),
           out, "x must be dense float32 (tokens, k or 1, depth of the weights)");
  ZO_CHECK(ctx,
           resize(out, std::nullopt, experts, 0, static_cast<SizesType>(width)) && is_dense(out, ScalarType::Float),
           out, "out must be float32 with room for (tokens, k, width of the weights)");
  ZO_CHECK(ctx, is_apart(out, {&x, &experts}), out, "out must not lie in the memory of x or experts");
  if (out.numel() == 0) {
    return out;
  }
  const size_t choices_of_row = k / size_of(x, 1);
  const size_t used = rows_before_zeros(x.const_data_ptr<float>(), rows_of(x), depth) * choices_of_row;
  const Choices choices{
      x.const_data_ptr<float>(),    used, tokens * k, choices_of_row, depth, width, experts.const_data_ptr<int64_t>(),
      out.mutable_data_ptr<float>()};
  for (size_t choice = 0; choice < choices.all; ++choice) {
    const int64_t expert = choices.experts[choice];
    if (choice >= used || expert < 0 || static_cast<size_t>(expert) >= weights.count) {
      std::fill_n(choices.to(choice), width, 0.0f);
    }
  }
  const size_t most = std::min(kMostRows, choices.all);
  float* const gathered = gathered_rows_memory(most * (depth + width));
  ET_KERNEL_CHECK(ctx, gathered != nullptr, MemoryAllocationFailed, out);
  bool ran = true;
  for (size_t expert = 0; ran && expert < weights.count; ++expert) {
    ran = multiply(choices, weights, expert, transposed, gathered, most);
  }
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

Tensor& routed_linear_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& weight, const Tensor& experts,
                          bool transposed, Tensor& out) {
  ZO_CHECK(ctx, is_dense(weight, ScalarType::Float) && weight.dim() == 3, out, "weight must be float32 (E, N, K)");
  const FloatExperts weights{weight.const_data_ptr<float>(), size_of(weight, 0), size_of(weight, 1),
                             size_of(weight, 2)};
  return routed_out(ctx, x, weights, experts, transposed, out);
}

Tensor& routed_linear_int4_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes, const Tensor& scales,
                               const Tensor& experts, bool transposed, Tensor& out) {
  const std::optional<kernels::Int4Matrix> first = as_int4(codes, scales, 3);
  ZO_CHECK(ctx, first.has_value(), out, kInt4Rule);
  const Int4Experts weights{*first, size_of(codes, 0), first->N, first->K};
  return routed_out(ctx, x, weights, experts, transposed, out);
}

Tensor& routed_linear_int8_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes, const Tensor& scales,
                               const Tensor& experts, bool transposed, Tensor& out) {
  const std::optional<kernels::Int8Matrix> first = as_int8(codes, scales, 3);
  ZO_CHECK(ctx, first.has_value(), out, kInt8Rule);
  const Int8Experts weights{*first, size_of(codes, 0), first->N, first->K};
  return routed_out(ctx, x, weights, experts, transposed, out);
}

const bool registered[] = {
    register_operator<routed_linear_out>("zoexport::routed_linear.out"),
    register_operator<routed_linear_int4_out>("zoexport::routed_linear_int4.out"),
    register_operator<routed_linear_int8_out>("zoexport::routed_linear_int8.out"),
};

}  // namespace
}  // namespace zoexport
