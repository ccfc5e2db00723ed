// The rounding and rotation of activations of namespace zoexport; exporter/zoexport/ir/activation_ops.py declares them.

#include <optional>

#include "../kernels/activations.h"
#include "executorch_support.h"

namespace zoexport {
namespace {

using namespace ops;

// Fewer elements than these are not worth another thread.
constexpr size_t kThreadElements = 16384;

Tensor& round_activations_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& format, Tensor& out) {
  ZO_CHECK(ctx, is_dense(x, ScalarType::Float), out, "x must be dense float32");
  ZO_CHECK(ctx, is_dense(format, ScalarType::Float) && format.dim() == 1 && format.numel() == 3, out,
           "format must be float32 (3)");
  const float* const numbers = format.const_data_ptr<float>();
  const kernels::ActivationFormat chosen{numbers[0], numbers[1], numbers[2]};
  ZO_CHECK(ctx, chosen.scale > 0.0f && chosen.float_scale > 0.0f, out, "format must have positive scales");
  ZO_CHECK(ctx, resize(out, std::nullopt, x, 0, std::nullopt) && is_dense(out, ScalarType::Float), out,
           "out must be float32 with room for x");
  const float* const in = x.const_data_ptr<float>();
  float* const rounded = out.mutable_data_ptr<float>();
  const bool ran = parallel(static_cast<size_t>(x.numel()), kThreadElements, [&](size_t begin, size_t end) {
    kernels::round_activations(in + begin, end - begin, chosen, rounded + begin);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

Tensor& rotate_rows_out(KernelRuntimeContext& ctx, const Tensor& x, Tensor& out) {
  ZO_CHECK(ctx, is_dense(x, ScalarType::Float) && x.dim() > 0, out, "x must be dense float32 (..., K)");
  ZO_CHECK(ctx, static_cast<size_t>(x.sizes()[x.dim() - 1]) % kernels::kRotated == 0, out,
           "K must be a multiple of 32");
  ZO_CHECK(ctx, resize(out, std::nullopt, x, 0, std::nullopt) && is_dense(out, ScalarType::Float), out,
           "out must be float32 with room for x");
  const float* const in = x.const_data_ptr<float>();
  float* const rotated = out.mutable_data_ptr<float>();
  const size_t blocks = static_cast<size_t>(x.numel()) / kernels::kRotated;
  const bool ran = parallel(blocks, kThreadElements / kernels::kRotated, [&](size_t begin, size_t end) {
    kernels::rotate(in + begin * kernels::kRotated, end - begin, rotated + begin * kernels::kRotated);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

const bool registered[] = {
    register_operator<round_activations_out>("zoexport::round_activations.out"),
    register_operator<rotate_rows_out>("zoexport::rotate_rows.out"),
};

}  // namespace
}  // namespace zoexport
