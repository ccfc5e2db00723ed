// Linear layers that return only labels' log-probabilities; exporter/zoexport/ir/label_ops.py declares them.

#include <algorithm>
#include <cmath>

#include "../kernels/linear_label_logprobs.h"
#include "../kernels/rounded.h"
#include "../kernels/scratch.h"
#include "executorch_weights.h"

namespace zoexport {
namespace {

using namespace ops;
using kernels::LabelProduct;
using kernels::LogitSum;

// Arguments of all these operators, except the weight.
struct LabelArguments {
  const Tensor& x;
  const std::optional<Tensor>& bias;
  double scale;
  double cap;
  const Tensor& label_tokens;
  Tensor& logprobs;
  Tensor& is_argmax;
};

// The rule that the arguments break, or null; outputs have their size then.
const char* misfit(const LabelArguments& given, size_t columns, size_t depth) {
  const Tensor& x = given.x;
  if (!has_rows(x, depth) || x.dim() != 3 || x.numel() == 0) {
    return "x must be dense float32 (C, M, K), none of them 0";
  }
  if (given.bias.has_value() &&
      !(is_dense(*given.bias, ScalarType::Float) && static_cast<size_t>(given.bias->numel()) == columns)) {
    return "bias must be float32 (V)";
  }
  if (!(std::isfinite(given.scale) && given.cap >= 0.0 && std::isfinite(given.cap))) {
    return "scale and cap must be numbers, cap not below 0";
  }
  const Tensor& labels = given.label_tokens;
  if (!is_dense(labels, ScalarType::Long) || labels.dim() != 1 || labels.size(0) != x.size(1)) {
    return "label_tokens must be int64 (M)";
  }
  if (kernels::find_bad_label(labels.const_data_ptr<int64_t>(), static_cast<size_t>(labels.size(0)), columns) >= 0) {
    return "every label must be in [0, V)";
  }
  for (Tensor* out : {&given.logprobs, &given.is_argmax}) {
    if (!resize(*out, std::nullopt, x, 1, std::nullopt) || !is_dense(*out, ScalarType::Float)) {
      return "logprobs and is_argmax must be float32 with room for (C, M)";
    }
    if (!is_apart(*out, {&labels})) {
      return "outputs must not lie in the memory of label_tokens";
    }
  }
  return nullptr;
}

// The rows of x without those at its end that have the result of the row before: a call of a fixed size is filled up with
// zeros of one label.
size_t distinct_rows(const Tensor& x, const Tensor& label_tokens, size_t depth) {
  const size_t rows = rows_of(x);
  const int64_t* labels = label_tokens.const_data_ptr<int64_t>();
  const size_t zeros = x.size(0) == 1 ? rows_before_zeros(x.const_data_ptr<float>(), rows, depth) : rows;
  size_t kept = rows;
  while (kept > zeros + 1 && labels[kept - 2] == labels[kept - 1]) {
    --kept;
  }
  return kept;
}

template <typename Matrix>
void label_logprobs(KernelRuntimeContext& ctx, const LabelArguments& given, const Matrix& weight, size_t columns,
                    size_t depth, bool rounds) {
  const char* broken = misfit(given, columns, depth);
  ZO_CHECK(ctx, broken == nullptr, , broken);
  const size_t rows = distinct_rows(given.x, given.label_tokens, depth), blocks = kernels::column_blocks(columns);
  // Sums first, as they are the widest; then floats, then bytes.
  constexpr size_t kFloats = sizeof(LogitSum) / sizeof(float);
  const size_t of_rounded = rounds ? kernels::rounded_floats(rows, depth) : 0;
  static thread_local kernels::Scratch scratch;
  float* memory = scratch.floats(blocks * rows * kFloats + rows + of_rounded + rows);
  ET_KERNEL_CHECK(ctx, memory != nullptr, MemoryAllocationFailed, );
  float* const label_logits = memory + blocks * rows * kFloats;
  float* const rounded = label_logits + rows;
  const LabelProduct product{given.x.const_data_ptr<float>(),
                             rows,
                             depth,
                             rounds ? rounded : nullptr,
                             weight,
                             columns,
                             floats_of(given.bias),
                             static_cast<float>(given.scale),
                             static_cast<float>(given.cap),
                             given.label_tokens.const_data_ptr<int64_t>(),
                             static_cast<size_t>(given.label_tokens.size(0)),
                             reinterpret_cast<LogitSum*>(memory),
                             label_logits,
                             reinterpret_cast<bool*>(rounded + of_rounded)};
  const bool ran = run(kernels::RoundLabelRows{product}) && run(product);
  ET_KERNEL_CHECK(ctx, ran, Internal, );
  float* const logprobs = given.logprobs.mutable_data_ptr<float>();
  float* const is_argmax = given.is_argmax.mutable_data_ptr<float>();
  kernels::finish_label_rows(product, logprobs, is_argmax);
  std::fill(logprobs + rows, logprobs + rows_of(given.x), logprobs[rows - 1]);
  std::fill(is_argmax + rows, is_argmax + rows_of(given.x), is_argmax[rows - 1]);
}

void linear_label_logprobs_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& weight,
                               const std::optional<Tensor>& bias, double scale, double cap, const Tensor& label_tokens,
                               Tensor& logprobs, Tensor& is_argmax) {
  ZO_CHECK(ctx, is_dense(weight, ScalarType::Float) && weight.dim() == 2, , "weight must be dense float32 (V, K)");
  const auto columns = static_cast<size_t>(weight.size(0)), depth = static_cast<size_t>(weight.size(1));
  const kernels::FloatMatrix matrix{weight.const_data_ptr<float>(), depth};
  label_logprobs(ctx, {x, bias, scale, cap, label_tokens, logprobs, is_argmax}, matrix, columns, depth, false);
}

template <bool rounds>
void int4_label_logprobs(KernelRuntimeContext& ctx, const Tensor& codes, const Tensor& scales,
                         const LabelArguments& given) {
  const std::optional<kernels::Int4Matrix> weight = as_int4(codes, scales);
  ZO_CHECK(ctx, weight.has_value(), , kInt4Rule);
  label_logprobs(ctx, given, *weight, weight->N, weight->K, rounds);
}

void linear_label_logprobs_int4_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes,
                                    const Tensor& scales, const std::optional<Tensor>& bias, double scale, double cap,
                                    const Tensor& label_tokens, Tensor& logprobs, Tensor& is_argmax) {
  int4_label_logprobs<false>(ctx, codes, scales, {x, bias, scale, cap, label_tokens, logprobs, is_argmax});
}

void rounded_linear_label_logprobs_int4_out(KernelRuntimeContext& ctx, const Tensor& x, const Tensor& codes,
                                            const Tensor& scales, const std::optional<Tensor>& bias, double scale,
                                            double cap, const Tensor& label_tokens, Tensor& logprobs,
                                            Tensor& is_argmax) {
  int4_label_logprobs<true>(ctx, codes, scales, {x, bias, scale, cap, label_tokens, logprobs, is_argmax});
}

const bool registered[] = {
    register_operator<linear_label_logprobs_out>("zoexport::linear_label_logprobs.out"),
    register_operator<linear_label_logprobs_int4_out>("zoexport::linear_label_logprobs_int4.out"),
    register_operator<rounded_linear_label_logprobs_int4_out>("zoexport::rounded_linear_label_logprobs_int4.out"),
};

}  // namespace
}  // namespace zoexport
