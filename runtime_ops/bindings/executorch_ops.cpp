// The operators of namespace zoexport for ExecuTorch; exporter/zoexport/ir/ops.py states the same schemas.
// Every argument is checked; a bad one fails the call with InvalidArgument and the process lives on.

#ifndef ET_USE_THREADPOOL
#define ET_USE_THREADPOOL // libexecutorch_threadpool.so is linked: parallel_for is its function
#endif

#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "../kernels/int4.h"
#include "../kernels/label_logprobs.h"
#include "../kernels/zeroth_order.h"

namespace zoexport {
namespace {

using executorch::aten::ArrayRef;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

// Fails the call, with the operator and the rule in the log, and returns `result` where `cond` does not hold.
#define ZO_CHECK(ctx, cond, result, rule) \
  ET_KERNEL_CHECK_MSG(ctx, cond, InvalidArgument, result, "%s: %s", __func__, rule)

bool is_dense(const Tensor& t, ScalarType type) {
  return t.scalar_type() == type && executorch::runtime::tensor_is_contiguous(t);
}

bool is_one(const Tensor& t, ScalarType type) {
  return t.scalar_type() == type && t.numel() == 1;
}

// The one element of an int64 tensor, where it is a u32.
std::optional<uint32_t> as_u32(const Tensor& t) {
  if (!is_one(t, ScalarType::Long)) {
    return std::nullopt;
  }
  const int64_t value = *t.const_data_ptr<int64_t>();
  if (value < 0 || value > int64_t{UINT32_MAX}) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(value);
}

// A seed is a u64 that travels as int64.
uint64_t as_seed(const Tensor& t) {
  return static_cast<uint64_t>(*t.const_data_ptr<int64_t>());
}

bool is_u32(int64_t value) {
  return value >= 0 && value <= int64_t{UINT32_MAX};
}

constexpr size_t kMaxDim = executorch::runtime::kTensorDimensionLimit;

// Resizes `out` to (first?, like's sizes without the last `drop`, last?).
bool resize(
    Tensor& out,
    std::optional<SizesType> first,
    const Tensor& like,
    size_t drop,
    std::optional<SizesType> last) {
  std::array<SizesType, kMaxDim> sizes;
  const size_t kept = static_cast<size_t>(like.dim()) - drop;
  const size_t rank = kept + (first ? 1 : 0) + (last ? 1 : 0);
  if (rank > kMaxDim) {
    return false;
  }
  size_t d = 0;
  if (first) {
    sizes[d++] = *first;
  }
  for (size_t i = 0; i < kept; ++i) {
    sizes[d++] = like.sizes()[i];
  }
  if (last) {
    sizes[d++] = *last;
  }
  return executorch::runtime::resize_tensor(out, ArrayRef<SizesType>(sizes.data(), rank)) == Error::Ok;
}

// Splits begin..end-1 over the runtime's threads; false where the pool refused.
template <typename Body>
bool parallel(size_t count, size_t grain, const Body& body) {
  return count == 0 ||
      executorch::extension::parallel_for(
             0, static_cast<int64_t>(count), static_cast<int64_t>(grain), [&](int64_t begin, int64_t end) {
               body(static_cast<size_t>(begin), static_cast<size_t>(end));
             });
}

Tensor& zo_update_out(
    KernelRuntimeContext& ctx,
    const Tensor& master,
    const Tensor& gradients,
    const Tensor& learning_rate,
    const Tensor& seed,
    const Tensor& step,
    int64_t tensor_id,
    Tensor& out) {
  ZO_CHECK(ctx, is_dense(master, ScalarType::Float), out, "master must be dense float32");
  ZO_CHECK(
      ctx,
      is_dense(gradients, ScalarType::Float) && gradients.numel() > 0,
      out,
      "gradients must be float32 (q), q >= 1");
  ZO_CHECK(ctx, is_one(learning_rate, ScalarType::Float), out, "learning_rate must be float32 (1)");
  ZO_CHECK(ctx, is_one(seed, ScalarType::Long), out, "seed must be int64 (1)");
  const std::optional<uint32_t> step_number = as_u32(step);
  ZO_CHECK(ctx, step_number.has_value(), out, "step must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, is_u32(tensor_id), out, "tensor_id must be in [0, 2^32)");
  ZO_CHECK(
      ctx,
      resize(out, std::nullopt, master, 0, std::nullopt) && is_dense(out, ScalarType::Float),
      out,
      "out must be float32 with room for master");
  const bool done = kernels::zo_update(
      master.const_data_ptr<float>(),
      static_cast<size_t>(master.numel()),
      gradients.const_data_ptr<float>(),
      static_cast<size_t>(gradients.numel()),
      *learning_rate.const_data_ptr<float>(),
      as_seed(seed),
      *step_number,
      static_cast<uint32_t>(tensor_id),
      out.mutable_data_ptr<float>());
  ZO_CHECK(ctx, done, out, "no gradient can be pending at step 0");
  return out;
}

Tensor& zo_perturb_out(
    KernelRuntimeContext& ctx,
    const Tensor& master,
    const Tensor& epsilon,
    const Tensor& seed,
    const Tensor& step,
    int64_t tensor_id,
    int64_t queries,
    Tensor& out) {
  ZO_CHECK(ctx, is_dense(master, ScalarType::Float), out, "master must be dense float32");
  ZO_CHECK(ctx, is_one(epsilon, ScalarType::Float), out, "epsilon must be float32 (1)");
  ZO_CHECK(ctx, is_one(seed, ScalarType::Long), out, "seed must be int64 (1)");
  const std::optional<uint32_t> step_number = as_u32(step);
  ZO_CHECK(ctx, step_number.has_value(), out, "step must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, is_u32(tensor_id), out, "tensor_id must be in [0, 2^32)");
  ZO_CHECK(ctx, queries >= 1 && queries <= (1 << 20), out, "queries must be in [1, 2^20]");
  ZO_CHECK(
      ctx,
      resize(out, static_cast<SizesType>(2 * queries), master, 0, std::nullopt) &&
          is_dense(out, ScalarType::Float),
      out,
      "out must be float32 with room for 2 * queries copies");
  kernels::zo_perturb(
      master.const_data_ptr<float>(),
      static_cast<size_t>(master.numel()),
      *epsilon.const_data_ptr<float>(),
      as_seed(seed),
      *step_number,
      static_cast<uint32_t>(tensor_id),
      static_cast<uint32_t>(queries),
      out.mutable_data_ptr<float>());
  return out;
}

Tensor& zo_perturb_one_out(
    KernelRuntimeContext& ctx,
    const Tensor& master,
    const Tensor& epsilon,
    const Tensor& sign,
    const Tensor& seed,
    const Tensor& step,
    const Tensor& query,
    int64_t tensor_id,
    Tensor& out) {
  ZO_CHECK(ctx, is_dense(master, ScalarType::Float), out, "master must be dense float32");
  ZO_CHECK(ctx, is_one(epsilon, ScalarType::Float), out, "epsilon must be float32 (1)");
  ZO_CHECK(
      ctx,
      is_one(sign, ScalarType::Float) && std::abs(*sign.const_data_ptr<float>()) == 1.0f,
      out,
      "sign must be float32 (1), 1 or -1");
  ZO_CHECK(ctx, is_one(seed, ScalarType::Long), out, "seed must be int64 (1)");
  const std::optional<uint32_t> step_number = as_u32(step);
  ZO_CHECK(ctx, step_number.has_value(), out, "step must be int64 (1) in [0, 2^32)");
  const std::optional<uint32_t> query_number = as_u32(query);
  ZO_CHECK(ctx, query_number.has_value(), out, "query must be int64 (1) in [0, 2^32)");
  ZO_CHECK(ctx, is_u32(tensor_id), out, "tensor_id must be in [0, 2^32)");
  ZO_CHECK(
      ctx,
      resize(out, SizesType{1}, master, 0, std::nullopt) && is_dense(out, ScalarType::Float),
      out,
      "out must be float32 with room for one copy");
  kernels::zo_perturb_one(
      master.const_data_ptr<float>(),
      static_cast<size_t>(master.numel()),
      *sign.const_data_ptr<float>() * *epsilon.const_data_ptr<float>(),
      as_seed(seed),
      *step_number,
      *query_number,
      static_cast<uint32_t>(tensor_id),
      out.mutable_data_ptr<float>());
  return out;
}

void label_logprobs_out(
    KernelRuntimeContext& ctx,
    const Tensor& logits,
    const Tensor& label_tokens,
    Tensor& logprobs,
    Tensor& is_argmax) {
  ZO_CHECK(
      ctx,
      is_dense(logits, ScalarType::Float) && logits.dim() == 3 && logits.size(2) > 0,
      ,
      "logits must be dense float32 (C, M, V), V >= 1");
  ZO_CHECK(
      ctx,
      is_dense(label_tokens, ScalarType::Long) && label_tokens.dim() == 1 &&
          label_tokens.size(0) == logits.size(1),
      ,
      "label_tokens must be int64 (M)");
  const size_t M = static_cast<size_t>(logits.size(1));
  const size_t V = static_cast<size_t>(logits.size(2));
  const int64_t* labels = label_tokens.const_data_ptr<int64_t>();
  ZO_CHECK(ctx, kernels::find_bad_label(labels, M, V) < 0, , "every label must be in [0, V)");
  ZO_CHECK(
      ctx,
      resize(logprobs, std::nullopt, logits, 1, std::nullopt) && is_dense(logprobs, ScalarType::Float) &&
          resize(is_argmax, std::nullopt, logits, 1, std::nullopt) &&
          is_dense(is_argmax, ScalarType::Float),
      ,
      "logprobs and is_argmax must be float32 with room for (C, M)");
  const float* in = logits.const_data_ptr<float>();
  float* out = logprobs.mutable_data_ptr<float>();
  float* most = is_argmax.mutable_data_ptr<float>();
  const bool ran = parallel(
      static_cast<size_t>(logits.size(0)) * M,
      std::max<size_t>(1, 32768 / V),
      [&](size_t begin, size_t end) {
        kernels::label_logprobs_rows(in, labels, M, V, begin, end, out, most);
      });
  ET_KERNEL_CHECK(ctx, ran, Internal, );
}

// The packed matrix of codes uint8 (N, K/2) and scales bfloat16 (N, K/G), or nothing where they do not fit.
std::optional<kernels::Int4Matrix> as_int4(const Tensor& codes, const Tensor& scales) {
  if (!is_dense(codes, ScalarType::Byte) || !is_dense(scales, ScalarType::BFloat16) || codes.dim() != 2 ||
      scales.dim() != 2 || codes.size(0) != scales.size(0) || scales.size(1) < 1) {
    return std::nullopt;
  }
  const size_t K = 2 * static_cast<size_t>(codes.size(1));
  const size_t groups = static_cast<size_t>(scales.size(1));
  const kernels::Int4Matrix matrix{
      codes.const_data_ptr<uint8_t>(),
      static_cast<const uint16_t*>(scales.const_data_ptr()),
      static_cast<size_t>(codes.size(0)),
      K,
      K / groups};
  if (K % groups != 0 || !kernels::int4_valid(matrix)) {
    return std::nullopt;
  }
  return matrix;
}

constexpr const char* kPackedRule =
    "codes must be uint8 (N, K/2), scales bfloat16 (N, K/G), G a multiple of 32 that divides K";

Tensor& linear_int4_out(
    KernelRuntimeContext& ctx,
    const Tensor& x,
    const Tensor& codes,
    const Tensor& scales,
    const std::optional<Tensor>& bias,
    Tensor& out) {
  const std::optional<kernels::Int4Matrix> weight = as_int4(codes, scales);
  ZO_CHECK(ctx, weight.has_value(), out, kPackedRule);
  ZO_CHECK(
      ctx,
      is_dense(x, ScalarType::Float) && x.dim() >= 1 &&
          static_cast<size_t>(x.size(x.dim() - 1)) == weight->K,
      out,
      "x must be dense float32 (..., K)");
  ZO_CHECK(
      ctx,
      !bias.has_value() ||
          (is_dense(*bias, ScalarType::Float) && static_cast<size_t>(bias->numel()) == weight->N),
      out,
      "bias must be float32 (N)");
  ZO_CHECK(
      ctx,
      resize(out, std::nullopt, x, 1, static_cast<SizesType>(weight->N)) &&
          is_dense(out, ScalarType::Float),
      out,
      "out must be float32 with room for (..., N)");
  const size_t T = static_cast<size_t>(x.numel()) / weight->K;
  const float* in = x.const_data_ptr<float>();
  const float* added = bias.has_value() ? bias->const_data_ptr<float>() : nullptr;
  float* y = out.mutable_data_ptr<float>();
  // Work is dealt in fours of columns, the tile of the kernel.
  const bool ran = parallel((weight->N + 3) / 4, 16, [&](size_t begin, size_t end) {
    kernels::linear_int4_columns(in, T, *weight, added, 4 * begin, std::min(4 * end, weight->N), y);
  });
  ET_KERNEL_CHECK(ctx, ran, Internal, out);
  return out;
}

Tensor& embedding_int4_out(
    KernelRuntimeContext& ctx,
    const Tensor& codes,
    const Tensor& scales,
    const Tensor& indices,
    Tensor& out) {
  const std::optional<kernels::Int4Matrix> table = as_int4(codes, scales);
  ZO_CHECK(ctx, table.has_value(), out, kPackedRule);
  ZO_CHECK(ctx, is_dense(indices, ScalarType::Long), out, "indices must be dense int64");
  ZO_CHECK(
      ctx,
      resize(out, std::nullopt, indices, 0, static_cast<SizesType>(table->K)) &&
          is_dense(out, ScalarType::Float),
      out,
      "out must be float32 with room for (..., K)");
  const bool done = kernels::embedding_int4(
      *table,
      indices.const_data_ptr<int64_t>(),
      static_cast<size_t>(indices.numel()),
      out.mutable_data_ptr<float>());
  ZO_CHECK(ctx, done, out, "every index must be in [0, N)");
  return out;
}

Tensor& first_positions_out(
    KernelRuntimeContext& ctx,
    const Tensor& table,
    const Tensor& tokens,
    int64_t first,
    int64_t count,
    bool merge,
    Tensor& out) {
  ZO_CHECK(
      ctx,
      executorch::runtime::tensor_is_contiguous(table) && out.scalar_type() == table.scalar_type(),
      out,
      "table must be dense, out of its type");
  ZO_CHECK(ctx, tokens.dim() == 2, out, "tokens must be (rows, s)");
  ZO_CHECK(
      ctx,
      (count == 1 || count == 2) && first >= (merge ? 1 : 0) && first + count <= table.dim(),
      out,
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
      sizes[rank - 1] *= length;
    } else {
      sizes[rank++] = cut ? length : size;
    }
    if (axis < first) {
      outer *= static_cast<size_t>(size);
    } else if (!cut) {
      inner *= static_cast<size_t>(size);
    }
  }
  ZO_CHECK(
      ctx,
      executorch::runtime::resize_tensor(out, ArrayRef<SizesType>(sizes.data(), rank)) == Error::Ok,
      out,
      "out must have room for the cut table");
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

// Boxed by hand: EXECUTORCH_LIBRARY takes functions of one output only.
void label_logprobs_boxed(KernelRuntimeContext& ctx, Span<EValue*> stack) {
  ET_KERNEL_CHECK(ctx, stack.size() >= 4, InvalidArgument, );
  for (size_t i = 0; i < 4; ++i) {
    ET_KERNEL_CHECK(ctx, stack[i]->isTensor(), InvalidArgument, );
  }
  label_logprobs_out(
      ctx, stack[0]->toTensor(), stack[1]->toTensor(), stack[2]->toTensor(), stack[3]->toTensor());
}

EXECUTORCH_LIBRARY(zoexport, "zo_update.out", zo_update_out);
EXECUTORCH_LIBRARY(zoexport, "zo_perturb.out", zo_perturb_out);
EXECUTORCH_LIBRARY(zoexport, "zo_perturb_one.out", zo_perturb_one_out);
EXECUTORCH_LIBRARY(zoexport, "linear_int4.out", linear_int4_out);
EXECUTORCH_LIBRARY(zoexport, "embedding_int4.out", embedding_int4_out);
EXECUTORCH_LIBRARY(zoexport, "first_positions.out", first_positions_out);
const auto registered = executorch::runtime::register_kernel(
    executorch::runtime::Kernel("zoexport::label_logprobs.out", label_logprobs_boxed));

} // namespace
} // namespace zoexport
