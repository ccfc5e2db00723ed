// Recurrences and causal convolutions of namespace zoexport; exporter/zoexport/ir/recurrence_ops.py declares them.

#include <optional>

#include "../kernels/products.h"
#include "../kernels/recurrence.h"
#include "executorch_support.h"

namespace zoexport {
namespace {

using namespace ops;

bool has_shape(const Tensor& t, std::initializer_list<ssize_t> sizes) {
  return is_dense(t, ScalarType::Float) && t.dim() == static_cast<ssize_t>(sizes.size()) &&
         std::equal(sizes.begin(), sizes.end(), t.sizes().begin());
}

constexpr const char* kRecurrenceRule =
    "q and k must be dense float32 (batches, tokens, key heads, depth), v (batches, tokens, heads, width) with heads "
    "in "
    "equal groups, decay (batches, tokens, heads, 1 or depth), rates (heads, depth), beta (batches, tokens, heads)";

// The recurrence of the operands, or nothing where they do not fit.
std::optional<kernels::Recurrence> recurrence_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& decay,
                                                 const std::optional<Tensor>& rates,
                                                 const std::optional<Tensor>& beta) {
  if (q.dim() != 4 || v.dim() != 4 || decay.dim() != 4) {
    return std::nullopt;
  }
  const ssize_t batches = v.size(0), tokens = v.size(1), heads = v.size(2), groups = q.size(2), depth = q.size(3);
  const ssize_t decays = decay.size(3);
  const bool fits = groups > 0 && heads % groups == 0 && (decays == 1 || decays == depth) &&
                    has_shape(q, {batches, tokens, groups, depth}) && has_shape(k, {batches, tokens, groups, depth}) &&
                    is_dense(v, ScalarType::Float) && has_shape(decay, {batches, tokens, heads, decays}) &&
                    (!rates.has_value() || has_shape(*rates, {heads, depth})) &&
                    (!beta.has_value() || has_shape(*beta, {batches, tokens, heads}));
  if (!fits) {
    return std::nullopt;
  }
  return kernels::Recurrence{q.const_data_ptr<float>(),
                             k.const_data_ptr<float>(),
                             v.const_data_ptr<float>(),
                             decay.const_data_ptr<float>(),
                             rates.has_value() ? rates->const_data_ptr<float>() : nullptr,
                             beta.has_value() ? beta->const_data_ptr<float>() : nullptr,
                             size_of(v, 0),
                             size_of(v, 1),
                             size_of(v, 2),
                             size_of(q, 2),
                             size_of(q, 3),
                             size_of(v, 3),
                             static_cast<size_t>(decays)};
}

bool run_heads(const kernels::Recurrence& of, const kernels::Carried& carried, float* out) {
  return run_all(kernels::Tasks{of.batches * of.heads, 1},
                 [&](size_t begin, size_t end) { return kernels::run_recurrence(of, carried, out, begin, end); });
}

Tensor& linear_recurrence_out(KernelRuntimeContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& decay, const std::optional<Tensor>& rates,
                              const std::optional<Tensor>& beta, Tensor& out) {
  const auto of = recurrence_of(q, k, v, decay, rates, beta);
  ZO_CHECK(ctx, of.has_value(), out, kRecurrenceRule);
  ZO_CHECK(ctx, has_sizes(out, {v.sizes()[0], v.sizes()[1], v.sizes()[2], v.sizes()[3]}), out,
           "out must be float32 with room for v");
  ZO_CHECK(ctx, is_apart(out, {&q, &k, &v, &decay}), out, "out must not lie in the memory of q, k, v or decay");
  const bool ran = run_heads(*of, {nullptr, nullptr, 0}, out.mutable_data_ptr<float>());
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

void linear_recurrence_gradient_out(KernelRuntimeContext& ctx, const Tensor& gradient, const Tensor& q, const Tensor& k,
                                    const Tensor& v, const Tensor& decay, const std::optional<Tensor>& rates,
                                    const std::optional<Tensor>& beta, int64_t parts, Tensor& dq, Tensor& dk,
                                    Tensor& dv, Tensor& ddecay, Tensor& dbeta) {
  const auto of = recurrence_of(q, k, v, decay, rates, beta);
  ZO_CHECK(ctx, of.has_value(), , kRecurrenceRule);
  const SizesType batches = v.sizes()[0], tokens = v.sizes()[1], heads = v.sizes()[2];
  ZO_CHECK(ctx, has_shape(gradient, {batches, tokens, heads, v.size(3)}), , "gradient must be of the shape of v");
  ZO_CHECK(ctx, parts > 0 && parts <= heads && heads % parts == 0 && parts % q.size(2) == 0, ,
           "parts must divide the heads, and the key heads divide them");
  const auto apart = static_cast<SizesType>(parts);
  ZO_CHECK(
      ctx,
      has_sizes(dq, {batches, tokens, apart, q.sizes()[3]}) && has_sizes(dk, {batches, tokens, apart, q.sizes()[3]}) &&
          has_sizes(dv, {batches, tokens, heads, v.sizes()[3]}) &&
          has_sizes(ddecay, {batches, tokens, heads, decay.sizes()[3]}) && has_sizes(dbeta, {batches, tokens, heads}),
      , "the gradients must be float32 with room for them");
  for (const Tensor* out : {&dq, &dk, &dv, &ddecay, &dbeta}) {
    ZO_CHECK(ctx, is_apart(*out, {&gradient, &q, &k, &v, &decay}), ,
             "gradients must not lie in the memory of what is read");
  }
  const kernels::RecurrenceGradient to{gradient.const_data_ptr<float>(), static_cast<size_t>(parts),
                                       dq.mutable_data_ptr<float>(),     dk.mutable_data_ptr<float>(),
                                       dv.mutable_data_ptr<float>(),     ddecay.mutable_data_ptr<float>(),
                                       dbeta.mutable_data_ptr<float>()};
  const bool ran = run_all(kernels::Tasks{of->batches * to.parts, 1}, [&](size_t begin, size_t end) {
    return kernels::run_recurrence_gradient(*of, to, begin, end);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, );
}

void cached_recurrence_out(KernelRuntimeContext& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& decay, const std::optional<Tensor>& rates, const std::optional<Tensor>& beta,
                           const Tensor& state, const Tensor& position, const Tensor& count, Tensor& out,
                           Tensor& after) {
  const auto of = recurrence_of(q, k, v, decay, rates, beta);
  ZO_CHECK(ctx, of.has_value() && of->batches == 1, , kRecurrenceRule);
  const ssize_t heads = v.size(2), size = q.size(3) * v.size(3);
  ZO_CHECK(ctx, has_shape(state, {heads, 1, size}), , "state must be dense float32 (heads, 1, depth * width)");
  const std::optional<uint32_t> first = as_u32(position), taken = as_u32(count);
  ZO_CHECK(ctx, first.has_value() && taken.has_value() && *taken >= 1 && *taken <= of->tokens, ,
           "position must be int64 (1) in [0, 2^32), and count in 1 to the number of tokens");
  ZO_CHECK(ctx,
           has_sizes(out, {1, v.sizes()[1], v.sizes()[2], v.sizes()[3]}) &&
               has_sizes(after, {1, v.sizes()[2], 1, state.sizes()[2]}),
           , "out and after must be float32 with room for the results");
  for (const Tensor* written : {&out, &after}) {
    ZO_CHECK(ctx, is_apart(*written, {&q, &k, &v, &decay, &state}), ,
             "results must not lie in the memory of what is read");
  }
  const kernels::Carried carried{*first == 0 ? nullptr : state.const_data_ptr<float>(), after.mutable_data_ptr<float>(),
                                 *taken};
  ET_KERNEL_CHECK(ctx, run_heads(*of, carried, out.mutable_data_ptr<float>()), Internal, );
}

Tensor& conv_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                 kernels::CausalConv conv, Tensor& out) {
  ZO_CHECK(ctx,
           is_dense(x, ScalarType::Float) && x.dim() == 3 && weight.dim() == 2 && weight.size(1) > 0 &&
               has_shape(weight, {x.size(2), weight.size(1)}) && (!bias.has_value() || has_shape(*bias, {x.size(2)})),
           out, "x must be dense float32 (batches, tokens, channels), weight (channels, window), bias (channels)");
  ZO_CHECK(ctx, has_sizes(out, {x.sizes()[0], x.sizes()[1], x.sizes()[2]}) && is_apart(out, {&x}), out,
           "out must be float32 with room for x, and not lie in its memory");
  conv.x = x.const_data_ptr<float>();
  conv.weight = weight.const_data_ptr<float>();
  conv.bias = bias.has_value() ? bias->const_data_ptr<float>() : nullptr;
  conv.batches = size_of(x, 0);
  conv.tokens = size_of(x, 1);
  conv.channels = size_of(x, 2);
  conv.window = size_of(weight, 1);
  const bool ran = run_all(kernels::Tasks{conv.batches * conv.tokens, 8}, [&](size_t begin, size_t end) {
    return kernels::run_causal_conv(conv, out.mutable_data_ptr<float>(), begin, end);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

Tensor& causal_conv_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, bool reverse, Tensor& out) {
  kernels::CausalConv conv{};
  conv.reverse = reverse;
  return conv_out(ctx, x, weight, bias, conv, out);
}

Tensor& cached_conv_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const Tensor& before, const Tensor& position, Tensor& out) {
  const std::optional<uint32_t> first = as_u32(position);
  ZO_CHECK(ctx,
           first.has_value() && x.dim() == 3 && x.size(0) == 1 && weight.dim() == 2 && before.dim() == 3 &&
               has_shape(before, {1, before.size(1), x.size(2)}) && before.size(1) > 0 &&
               before.size(1) + 1 >= weight.size(1),
           out, "before must be dense float32 (1, window - 1 or more, channels), x of one batch, position int64 (1)");
  kernels::CausalConv conv{};
  conv.before = before.const_data_ptr<float>();
  conv.rows = size_of(before, 1);
  conv.first = *first;
  return conv_out(ctx, x, weight, bias, conv, out);
}

const bool registered[] = {
    register_operator<linear_recurrence_out>("zoexport::linear_recurrence.out"),
    register_operator<linear_recurrence_gradient_out>("zoexport::linear_recurrence_gradient.out"),
    register_operator<cached_recurrence_out>("zoexport::cached_recurrence.out"),
    register_operator<causal_conv_out>("zoexport::causal_conv.out"),
    register_operator<cached_conv_out>("zoexport::cached_conv.out"),
};

}  // namespace
}  // namespace zoexport
