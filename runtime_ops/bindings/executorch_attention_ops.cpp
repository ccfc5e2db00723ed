// Attention, its gradient, and attention over a cache, of namespace zoexport; exporter/zoexport/ir/attention_ops.py
// declares them.

#include <optional>

#include "../kernels/attention.h"
#include "../kernels/cached_attention.h"
#include "executorch_support.h"

namespace zoexport {
namespace {

using namespace ops;

bool is_floats(const Tensor& t, ssize_t rank) { return is_dense(t, ScalarType::Float) && t.dim() == rank; }

Tensor& cached_attention_out(KernelRuntimeContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& keys, const Tensor& values, const Tensor& position,
                             const std::optional<Tensor>& slopes, double scale, double softcap, int64_t window,
                             Tensor& out) {
  ZO_CHECK(ctx,
           is_floats(q, 4) && is_floats(k, 4) && is_floats(v, 4) && q.size(0) == 1 && k.size(0) == 1 && v.size(0) == 1,
           out, "q, k and v must be dense float32 (1, heads, tokens, width)");
  ZO_CHECK(ctx,
           k.size(1) > 0 && q.size(1) % k.size(1) == 0 && v.size(1) == k.size(1) && k.size(2) == q.size(2) &&
               v.size(2) == q.size(2) && k.size(3) == q.size(3),
           out, "k and v must have the tokens of q, its heads in equal groups, and k its width");
  ZO_CHECK(ctx,
           is_floats(keys, 3) && is_floats(values, 3) && keys.size(0) == k.size(1) && keys.size(2) == k.size(3) &&
               values.size(0) == v.size(1) && values.size(2) == v.size(3) && keys.size(1) == values.size(1) &&
               keys.size(1) > 0,
           out, "keys and values must be dense float32 (groups, rows, width)");
  const std::optional<uint32_t> first = as_u32(position);
  ZO_CHECK(ctx, first.has_value(), out, "position must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, !slopes.has_value() || (is_floats(*slopes, 1) && slopes->size(0) == q.size(1)), out,
           "slopes must be float32 (heads)");
  ZO_CHECK(ctx, softcap >= 0 && window >= 0, out, "softcap and window must be at least 0");
  const std::array<SizesType, 4> sizes = {1, q.sizes()[1], q.sizes()[2], v.sizes()[3]};
  ZO_CHECK(ctx,
           executorch::runtime::resize_tensor(out, ArrayRef<SizesType>(sizes.data(), sizes.size())) == Error::Ok &&
               is_dense(out, ScalarType::Float),
           out, "out must be float32 with room for the result");
  const kernels::CachedAttention attention{q.const_data_ptr<float>(),
                                           k.const_data_ptr<float>(),
                                           v.const_data_ptr<float>(),
                                           keys.const_data_ptr<float>(),
                                           values.const_data_ptr<float>(),
                                           slopes.has_value() ? slopes->const_data_ptr<float>() : nullptr,
                                           size_of(q, 1),
                                           size_of(k, 1),
                                           size_of(q, 2),
                                           size_of(q, 3),
                                           size_of(v, 3),
                                           size_of(keys, 1),
                                           *first,
                                           static_cast<float>(scale),
                                           static_cast<float>(softcap),
                                           static_cast<size_t>(window),
                                           out.mutable_data_ptr<float>()};
  ZO_CHECK(ctx, kernels::cache_reaches(attention), out, "the cache must have every token that is seen");
  const kernels::Tasks tasks{attention.heads * attention.tokens, kernels::queries_of_a_thread(attention)};
  const bool ran =
      run_all(tasks, [&](size_t begin, size_t end) { return kernels::run_queries(attention, begin, end); });
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

constexpr ssize_t kMostTokens = ssize_t{1} << 30;  // places and windows are added up as 32-bit integers

// What is wrong with the operands of attention, or null.
const char* attention_misfit(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
                             bool causal, int64_t window) {
  if (!is_floats(q, 4) || !is_floats(k, 4) || !is_floats(v, 4)) {
    return "q, k and v must be dense float32 (batches, tokens, heads, width)";
  }
  if (k.size(2) == 0 || q.size(2) == 0 || q.size(2) % k.size(2) != 0 || q.size(3) == 0 || v.size(3) == 0) {
    return "the heads of q must be equal groups over those of k, and none empty";
  }
  for (const ssize_t axis : {0, 1}) {
    if (k.size(axis) != q.size(axis) || v.size(axis) != q.size(axis)) {
      return "q, k and v must have the same batches and tokens";
    }
  }
  if (q.size(1) > kMostTokens) {
    return "there may be 2^30 tokens at most";
  }
  if (v.size(2) != k.size(2) || k.size(3) != q.size(3)) {
    return "k must have the width of q, and v the heads of k";
  }
  if (bias.has_value() && (!is_floats(*bias, 2) || bias->size(0) != q.size(0) || bias->size(1) != q.size(1))) {
    return "bias must be dense float32 (batches, tokens)";
  }
  if (window < 0 || window > int64_t{INT32_MAX} || (window > 0 && !causal)) {
    return "window must be at least 0, and 0 where attention is not causal";
  }
  return nullptr;
}

kernels::Attention attention_of(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
                                double scale, bool causal, int64_t window) {
  return {q.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(),
          bias.has_value() ? bias->const_data_ptr<float>() : nullptr, size_of(q, 0), size_of(q, 1), size_of(q, 2),
          size_of(k, 2), size_of(q, 3), size_of(v, 3), static_cast<float>(scale), causal,
          // More than there are is all.
          window >= int64_t{q.size(1)} ? 0 : static_cast<size_t>(window)};
}

void attention_out(KernelRuntimeContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                   const std::optional<Tensor>& bias, double scale, bool causal, int64_t window, Tensor& out,
                   Tensor& lse) {
  const char* misfit = attention_misfit(q, k, v, bias, causal, window);
  ZO_CHECK(ctx, misfit == nullptr, , misfit);
  ZO_CHECK(ctx, has_sizes(out, {q.sizes()[0], q.sizes()[1], q.sizes()[2], v.sizes()[3]}), ,
           "out must be float32 with room for the result");
  ZO_CHECK(ctx, has_sizes(lse, {q.sizes()[0], q.sizes()[2], q.sizes()[1]}), ,
           "lse must be float32 with room for the result");
  const kernels::Attention attention = attention_of(q, k, v, bias, scale, causal, window);
  const kernels::AttentionResult result{out.mutable_data_ptr<float>(), lse.mutable_data_ptr<float>()};
  const bool ran = run_all(kernels::attention_tasks(attention), [&](size_t begin, size_t end) {
    return kernels::run_attention(attention, result, begin, end);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, );
}

void attention_gradient_out(KernelRuntimeContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                            const std::optional<Tensor>& bias, const Tensor& out, const Tensor& lse,
                            const Tensor& gradient, double scale, bool causal, int64_t window, Tensor& dq, Tensor& dk,
                            Tensor& dv) {
  const char* misfit = attention_misfit(q, k, v, bias, causal, window);
  ZO_CHECK(ctx, misfit == nullptr, , misfit);
  const auto is_result = [&](const Tensor& t) {
    return is_floats(t, 4) && t.size(0) == q.size(0) && t.size(1) == q.size(1) && t.size(2) == q.size(2) &&
           t.size(3) == v.size(3);
  };
  ZO_CHECK(ctx, is_result(out) && is_result(gradient), ,
           "out and its gradient must be dense float32 (batches, tokens, heads of q, width of v)");
  ZO_CHECK(ctx, is_floats(lse, 3) && lse.size(0) == q.size(0) && lse.size(1) == q.size(2) && lse.size(2) == q.size(1), ,
           "lse must be dense float32 (batches, heads of q, tokens)");
  const auto is_like = [](Tensor& t, const Tensor& like) {
    return has_sizes(t, {like.sizes()[0], like.sizes()[1], like.sizes()[2], like.sizes()[3]});
  };
  ZO_CHECK(ctx, is_like(dq, q) && is_like(dk, k) && is_like(dv, v), ,
           "the gradients must be float32 with room for those of q, k and v");
  const kernels::Attention attention = attention_of(q, k, v, bias, scale, causal, window);
  const kernels::AttentionGradient arrays{out.const_data_ptr<float>(),      lse.const_data_ptr<float>(),
                                          gradient.const_data_ptr<float>(), dq.mutable_data_ptr<float>(),
                                          dk.mutable_data_ptr<float>(),     dv.mutable_data_ptr<float>()};
  bool ran = true;
  for (size_t round = 0; ran && round < kernels::gradient_rounds(attention); ++round) {
    ran = run_all(kernels::gradient_tasks(attention, round), [&](size_t begin, size_t end) {
      return kernels::run_gradient(attention, arrays, round, begin, end);
    });
  }
  ET_KERNEL_CHECK(ctx, ran, Internal, );
}

const bool registered[] = {
    register_operator<attention_out>("zoexport::attention.out"),
    register_operator<attention_gradient_out>("zoexport::attention_gradient.out"),
    register_operator<cached_attention_out>("zoexport::cached_attention.out"),
};

}  // namespace
}  // namespace zoexport
