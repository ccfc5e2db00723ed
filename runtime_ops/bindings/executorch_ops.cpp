// The operators of namespace zoexport over state and loss; exporter/zoexport/ir/ops.py declares them.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "../kernels/label_logprobs.h"
#include "../kernels/zeroth_order.h"
#include "executorch_support.h"

namespace zoexport {
namespace {

using namespace ops;

// Update a master with elements T, whose ExecuTorch type is `type`.
template <typename T, typename Kernel>
Tensor& update_out(KernelRuntimeContext& ctx, ScalarType type, Kernel kernel, rng::Noise noise, const Tensor& master,
                   const Tensor& gradients, const Tensor& learning_rate, const Tensor& seed, const Tensor& step,
                   int64_t tensor_id, Tensor& out) {
  ZO_CHECK(ctx, is_dense(master, type), out, "master must be dense and of the operator's type");
  ZO_CHECK(ctx, is_dense(gradients, ScalarType::Float) && gradients.numel() > 0, out,
           "gradients must be float32 (q), q >= 1");
  ZO_CHECK(ctx, is_one(learning_rate, ScalarType::Float), out, "learning_rate must be float32 (1)");
  ZO_CHECK(ctx, is_one(seed, ScalarType::Long), out, "seed must be int64 (1)");
  const std::optional<uint32_t> step_number = as_u32(step);
  ZO_CHECK(ctx, step_number.has_value(), out, "step must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, is_u32(tensor_id), out, "tensor_id must be in [0, 2^32)");
  ZO_CHECK(ctx, resize(out, std::nullopt, master, 0, std::nullopt) && is_dense(out, type), out,
           "out must be of master's type with room for it");
  const bool done =
      kernel(static_cast<const T*>(master.const_data_ptr()), static_cast<size_t>(master.numel()),
             gradients.const_data_ptr<float>(), static_cast<size_t>(gradients.numel()),
             *learning_rate.const_data_ptr<float>(), as_seed(seed), *step_number, static_cast<uint32_t>(tensor_id),
             static_cast<T*>(out.mutable_data_ptr()), rng::blocks_of(noise), /*first=*/0);
  ZO_CHECK(ctx, done, out, "no gradient can be pending at step 0");
  return out;
}

Tensor& zo_update_out(KernelRuntimeContext& ctx, const Tensor& master, const Tensor& gradients,
                      const Tensor& learning_rate, const Tensor& seed, const Tensor& step, int64_t tensor_id,
                      Tensor& out) {
  return update_out<float>(ctx, ScalarType::Float, kernels::zo_update, rng::Noise::kNormal, master, gradients,
                           learning_rate, seed, step, tensor_id, out);
}

Tensor& zo_update_signs_out(KernelRuntimeContext& ctx, const Tensor& master, const Tensor& gradients,
                            const Tensor& learning_rate, const Tensor& seed, const Tensor& step, int64_t tensor_id,
                            Tensor& out) {
  return update_out<float>(ctx, ScalarType::Float, kernels::zo_update, rng::Noise::kRademacher, master, gradients,
                           learning_rate, seed, step, tensor_id, out);
}

Tensor& zo_update_half_out(KernelRuntimeContext& ctx, const Tensor& master, const Tensor& gradients,
                           const Tensor& learning_rate, const Tensor& seed, const Tensor& step, int64_t tensor_id,
                           Tensor& out) {
  return update_out<uint16_t>(ctx, ScalarType::Half, kernels::zo_update_half, rng::Noise::kNormal, master, gradients,
                              learning_rate, seed, step, tensor_id, out);
}

// All copies of a master: along the signs of each direction from one that is not moved, or along normals to both sides.
Tensor& perturb_out(KernelRuntimeContext& ctx, bool signs, const Tensor& master, const Tensor& epsilon,
                    const Tensor& seed, const Tensor& step, int64_t tensor_id, int64_t queries, Tensor& out) {
  ZO_CHECK(ctx, is_dense(master, ScalarType::Float), out, "master must be dense float32");
  ZO_CHECK(ctx, is_one(epsilon, ScalarType::Float), out, "epsilon must be float32 (1)");
  ZO_CHECK(ctx, is_one(seed, ScalarType::Long), out, "seed must be int64 (1)");
  const std::optional<uint32_t> step_number = as_u32(step);
  ZO_CHECK(ctx, step_number.has_value(), out, "step must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, is_u32(tensor_id), out, "tensor_id must be in [0, 2^32)");
  ZO_CHECK(ctx, queries >= 1 && queries <= (1 << 20), out, "queries must be in [1, 2^20]");
  const auto copies = static_cast<SizesType>(signs ? queries + 1 : 2 * queries);
  ZO_CHECK(ctx, resize(out, copies, master, 0, std::nullopt) && is_dense(out, ScalarType::Float), out,
           "out must be float32 with room for all copies");
  const auto kernel = signs ? kernels::zo_perturb_forward : kernels::zo_perturb;
  kernel(master.const_data_ptr<float>(), static_cast<size_t>(master.numel()), *epsilon.const_data_ptr<float>(),
         as_seed(seed), *step_number, static_cast<uint32_t>(tensor_id), static_cast<uint32_t>(queries),
         out.mutable_data_ptr<float>(), rng::blocks_of(signs ? rng::Noise::kRademacher : rng::Noise::kNormal));
  return out;
}

Tensor& zo_perturb_out(KernelRuntimeContext& ctx, const Tensor& master, const Tensor& epsilon, const Tensor& seed,
                       const Tensor& step, int64_t tensor_id, int64_t queries, Tensor& out) {
  return perturb_out(ctx, /*signs=*/false, master, epsilon, seed, step, tensor_id, queries, out);
}

Tensor& zo_perturb_signs_out(KernelRuntimeContext& ctx, const Tensor& master, const Tensor& epsilon, const Tensor& seed,
                             const Tensor& step, int64_t tensor_id, int64_t queries, Tensor& out) {
  return perturb_out(ctx, /*signs=*/true, master, epsilon, seed, step, tensor_id, queries, out);
}

Tensor& zo_perturb_one_out(KernelRuntimeContext& ctx, const Tensor& master, const Tensor& epsilon, const Tensor& sign,
                           const Tensor& seed, const Tensor& step, const Tensor& query, int64_t tensor_id,
                           Tensor& out) {
  ZO_CHECK(ctx, is_dense(master, ScalarType::Float), out, "master must be dense float32");
  ZO_CHECK(ctx, is_one(epsilon, ScalarType::Float), out, "epsilon must be float32 (1)");
  ZO_CHECK(ctx, is_one(sign, ScalarType::Float) && std::abs(*sign.const_data_ptr<float>()) == 1.0f, out,
           "sign must be float32 (1), 1 or -1");
  ZO_CHECK(ctx, is_one(seed, ScalarType::Long), out, "seed must be int64 (1)");
  const std::optional<uint32_t> step_number = as_u32(step);
  ZO_CHECK(ctx, step_number.has_value(), out, "step must be int64 (1) in [0, 2^32)");
  const std::optional<uint32_t> query_number = as_u32(query);
  ZO_CHECK(ctx, query_number.has_value(), out, "query must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, is_u32(tensor_id), out, "tensor_id must be in [0, 2^32)");
  ZO_CHECK(ctx, resize(out, SizesType{1}, master, 0, std::nullopt) && is_dense(out, ScalarType::Float), out,
           "out must be float32 with room for one copy");
  kernels::zo_perturb_one(master.const_data_ptr<float>(), static_cast<size_t>(master.numel()),
                          *sign.const_data_ptr<float>() * *epsilon.const_data_ptr<float>(), as_seed(seed), *step_number,
                          *query_number, static_cast<uint32_t>(tensor_id), out.mutable_data_ptr<float>());
  return out;
}

constexpr const char* kApart = "outputs must not lie in the memory of label_tokens";

void label_logprobs_out(KernelRuntimeContext& ctx, const Tensor& logits, const Tensor& label_tokens, Tensor& logprobs,
                        Tensor& is_argmax) {
  ZO_CHECK(ctx, is_dense(logits, ScalarType::Float) && logits.dim() == 3 && logits.size(2) > 0, ,
           "logits must be dense float32 (C, M, V), V >= 1");
  ZO_CHECK(
      ctx,
      is_dense(label_tokens, ScalarType::Long) && label_tokens.dim() == 1 && label_tokens.size(0) == logits.size(1), ,
      "label_tokens must be int64 (M)");
  const size_t M = static_cast<size_t>(logits.size(1));
  const size_t V = static_cast<size_t>(logits.size(2));
  const int64_t* labels = label_tokens.const_data_ptr<int64_t>();
  ZO_CHECK(ctx, kernels::find_bad_label(labels, M, V) < 0, , "every label must be in [0, V)");
  ZO_CHECK(ctx,
           resize(logprobs, std::nullopt, logits, 1, std::nullopt) && is_dense(logprobs, ScalarType::Float) &&
               resize(is_argmax, std::nullopt, logits, 1, std::nullopt) && is_dense(is_argmax, ScalarType::Float),
           , "logprobs and is_argmax must be float32 with room for (C, M)");
  ZO_CHECK(ctx, is_apart(logprobs, {&label_tokens}) && is_apart(is_argmax, {&label_tokens}), , kApart);
  const float* in = logits.const_data_ptr<float>();
  float* out = logprobs.mutable_data_ptr<float>();
  float* most = is_argmax.mutable_data_ptr<float>();
  const bool ran = parallel(
      static_cast<size_t>(logits.size(0)) * M, std::max<size_t>(1, 32768 / V),
      [&](size_t begin, size_t end) { kernels::label_logprobs_rows(in, labels, M, V, begin, end, out, most); });
  ET_KERNEL_CHECK(ctx, ran, Internal, );
}

void label_gradient_out(KernelRuntimeContext& ctx, const Tensor& logits, const Tensor& label_tokens,
                        const Tensor& label_weights, Tensor& logprobs, Tensor& is_argmax, Tensor& gradient) {
  ZO_CHECK(ctx, is_dense(logits, ScalarType::Float) && logits.dim() == 2 && logits.size(1) > 0, ,
           "logits must be dense float32 (M, V), V >= 1");
  ZO_CHECK(
      ctx,
      is_dense(label_tokens, ScalarType::Long) && label_tokens.dim() == 1 && label_tokens.size(0) == logits.size(0), ,
      "label_tokens must be int64 (M)");
  ZO_CHECK(
      ctx,
      is_dense(label_weights, ScalarType::Float) && label_weights.dim() == 1 && label_weights.size(0) == logits.size(0),
      , "label_weights must be float32 (M)");
  const size_t M = static_cast<size_t>(logits.size(0));
  const size_t V = static_cast<size_t>(logits.size(1));
  const int64_t* labels = label_tokens.const_data_ptr<int64_t>();
  ZO_CHECK(ctx, kernels::find_bad_label(labels, M, V) < 0, , "every label must be in [0, V)");
  ZO_CHECK(ctx,
           resize(logprobs, std::nullopt, logits, 1, std::nullopt) && is_dense(logprobs, ScalarType::Float) &&
               resize(is_argmax, std::nullopt, logits, 1, std::nullopt) && is_dense(is_argmax, ScalarType::Float) &&
               resize(gradient, std::nullopt, logits, 0, std::nullopt) && is_dense(gradient, ScalarType::Float),
           , "logprobs and is_argmax must be float32 with room for (M), gradient for (M, V)");
  ZO_CHECK(ctx,
           is_apart(logprobs, {&label_tokens}) && is_apart(is_argmax, {&label_tokens}) &&
               is_apart(gradient, {&label_tokens}),
           , kApart);
  const float* in = logits.const_data_ptr<float>();
  const float* weights = label_weights.const_data_ptr<float>();
  float* out = logprobs.mutable_data_ptr<float>();
  float* most = is_argmax.mutable_data_ptr<float>();
  float* slope = gradient.mutable_data_ptr<float>();
  const bool ran = parallel(M, std::max<size_t>(1, 16384 / V), [&](size_t begin, size_t end) {
    kernels::label_gradient_rows(in, labels, weights, V, begin, end, out, most, slope);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, );
}

const bool registered[] = {
    register_operator<zo_update_out>("zoexport::zo_update.out"),
    register_operator<zo_update_signs_out>("zoexport::zo_update_signs.out"),
    register_operator<zo_update_half_out>("zoexport::zo_update_half.out"),
    register_operator<zo_perturb_out>("zoexport::zo_perturb.out"),
    register_operator<zo_perturb_signs_out>("zoexport::zo_perturb_signs.out"),
    register_operator<zo_perturb_one_out>("zoexport::zo_perturb_one.out"),
    register_operator<label_logprobs_out>("zoexport::label_logprobs.out"),
    register_operator<label_gradient_out>("zoexport::label_gradient.out"),
};

}  // namespace
}  // namespace zoexport
