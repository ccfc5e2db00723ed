// Helpers of the operators of namespace zoexport: checks of their arguments, sizes of their results, threads. Every
// argument is checked; a bad one fails the call with InvalidArgument and the process continues.
#pragma once

#ifndef ET_USE_THREADPOOL
#define ET_USE_THREADPOOL  // libexecutorch_threadpool.so is linked: parallel_for is its function
#endif

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>

#include "../engines/team.h"

namespace zoexport::ops {

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

// A program file may name a tensor without memory, or place one between the bounds of its elements.
inline bool has_memory(const Tensor& t) {
  const auto address = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  return t.numel() == 0 || (address != 0 && address % static_cast<size_t>(t.element_size()) == 0);
}

// Row-major without gaps. ExecuTorch's own check multiplies sizes of a program file as 32-bit integers.
inline bool is_contiguous(const Tensor& t) {
  int64_t stride = 1;
  for (ssize_t axis = t.dim() - 1; axis >= 0; --axis) {
    if (t.strides()[axis] != stride) {
      return false;
    }
    stride *= std::max<int64_t>(t.sizes()[axis], 1);  // within 62 bits, as the last one was within 31
  }
  return true;
}

inline bool is_dense(const Tensor& t, ScalarType type) { return t.scalar_type() == type && is_contiguous(t); }

inline bool is_one(const Tensor& t, ScalarType type) { return t.scalar_type() == type && t.numel() == 1; }

// Return the one element of an int64 tensor if it is a u32.
inline std::optional<uint32_t> as_u32(const Tensor& t) {
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
inline uint64_t as_seed(const Tensor& t) { return static_cast<uint64_t>(*t.const_data_ptr<int64_t>()); }

inline bool is_u32(int64_t value) { return value >= 0 && value <= int64_t{UINT32_MAX}; }

// Return the number of rows of x (..., width).
inline size_t rows_of(const Tensor& x) {
  size_t rows = 1;
  for (ssize_t axis = 0; axis + 1 < x.dim(); ++axis) {
    rows *= static_cast<size_t>(x.size(axis));
  }
  return rows;
}

// Rows of x (rows, depth) without those of zeros at its end: a call of a fixed size is filled up with them, and a linear
// layer's y of them is its bias.
inline size_t rows_before_zeros(const float* x, size_t rows, size_t depth) {
  const auto is_zero = [](float number) { return number == 0.0f; };
  while (rows > 0 && std::all_of(x + (rows - 1) * depth, x + rows * depth, is_zero)) {
    --rows;
  }
  return rows;
}

// Fill rows begin .. end-1 of y (rows, columns) with the bias, or with zeros if it is null.
inline void fill_with_bias(const float* bias, size_t begin, size_t end, size_t columns, float* y) {
  for (size_t row = begin; row < end; ++row) {
    if (bias == nullptr) {
      std::fill_n(y + row * columns, columns, 0.0f);
    } else {
      std::copy_n(bias, columns, y + row * columns);
    }
  }
}

// Compute a linear layer's y (rows, columns) of x (rows, depth); `multiply(count)` computes the first rows and returns
// whether it could.
template <typename Multiply>
bool without_last_zeros(const float* x, size_t rows, size_t depth, const float* bias, size_t columns, float* y,
                        const Multiply& multiply) {
  const size_t used = rows_before_zeros(x, rows, depth);
  fill_with_bias(bias, used, rows, columns, y);
  return used == 0 || multiply(used);
}

inline size_t size_of(const Tensor& t, ssize_t axis) { return static_cast<size_t>(t.size(axis)); }

inline constexpr size_t kMaxDim = executorch::runtime::kTensorDimensionLimit;

// Resizes `out` to (first?, like's sizes without the last `drop`, last?).
inline bool resize(Tensor& out, std::optional<SizesType> first, const Tensor& like, size_t drop,
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

// Resize `out` to these sizes. Return whether it has room for them and is dense float32.
inline bool has_sizes(Tensor& out, std::initializer_list<SizesType> sizes) {
  return executorch::runtime::resize_tensor(out, ArrayRef<SizesType>(sizes.begin(), sizes.size())) == Error::Ok &&
         is_dense(out, ScalarType::Float);
}

// Return whether writing to `out` leaves the tensors in `read` alone, which were checked before: a program file may
// give them the same memory.
inline bool is_apart(const Tensor& out, std::initializer_list<const Tensor*> read) {
  const auto begin = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()); };
  for (const Tensor* t : read) {
    if (begin(out) < begin(*t) + t->nbytes() && begin(*t) < begin(out) + out.nbytes()) {
      return false;
    }
  }
  return true;
}

// Split 0 .. count-1 over the threads of sessions, or over the runtime's if there is no session; false if those
// refused.
template <typename Body>
bool parallel(size_t count, size_t grain, const Body& body) {
  if (Team* team = Team::shared()) {
    team->run(count, grain, body);
    return true;
  }
  return count == 0 || executorch::extension::parallel_for(0, static_cast<int64_t>(count), static_cast<int64_t>(grain),
                                                           [&](int64_t begin, int64_t end) {
                                                             body(static_cast<size_t>(begin), static_cast<size_t>(end));
                                                           });
}

// Runs the tasks of a kernel, any range of them on any thread; false where one had no memory, or the threads refused.
template <typename Tasks, typename Run>
bool run_all(const Tasks& tasks, const Run& run) {
  std::atomic<bool> enough{true};
  const bool ran = parallel(tasks.count, tasks.grain, [&](size_t begin, size_t end) {
    if (!run(begin, end)) {
      enough = false;
    }
  });
  return ran && enough;
}

// Conversion of an EValue to an operator's parameter, and whether it is possible: ExecuTorch's own conversions abort
// the call with an assertion, and its boxing reads past the arguments that a program file names.
template <typename T>
struct Argument;

template <>
struct Argument<Tensor> {
  static bool fits(const EValue& value) { return value.isTensor() && has_memory(value.toTensor()); }
  static Tensor& of(EValue& value) { return value.toTensor(); }
};
template <>
struct Argument<std::optional<Tensor>> {
  static bool fits(const EValue& value) { return value.isNone() || Argument<Tensor>::fits(value); }
  static std::optional<Tensor> of(EValue& value) { return value.toOptional<Tensor>(); }
};
template <>
struct Argument<int64_t> {
  static bool fits(const EValue& value) { return value.isInt(); }
  static int64_t of(EValue& value) { return value.toInt(); }
};
template <>
struct Argument<double> {
  static bool fits(const EValue& value) { return value.isDouble(); }
  static double of(EValue& value) { return value.toDouble(); }
};
template <>
struct Argument<bool> {
  static bool fits(const EValue& value) { return value.isBool(); }
  static bool of(EValue& value) { return value.toBool(); }
};

// Calls an operator with what a program file names. ExecuTorch names the outputs again behind them.
template <auto Function, typename Type = decltype(Function)>
struct Boxed;
template <auto Function, typename Return, typename... Parameters>
struct Boxed<Function, Return (*)(KernelRuntimeContext&, Parameters...)> {
  template <typename T>
  using ArgumentOf = Argument<std::remove_cv_t<std::remove_reference_t<T>>>;

  template <size_t... Index>
  static void call(KernelRuntimeContext& ctx, Span<EValue*> stack, std::index_sequence<Index...>) {
    const bool fit = stack.size() >= sizeof...(Parameters) && (ArgumentOf<Parameters>::fits(*stack[Index]) && ...);
    ZO_CHECK(ctx, fit, , "the arguments must be those of the operator's schema, and tensors have memory");
    Function(ctx, ArgumentOf<Parameters>::of(*stack[Index])...);
  }
  static void call(KernelRuntimeContext& ctx, Span<EValue*> stack) {
    call(ctx, stack, std::index_sequence_for<Parameters...>());
  }
};

// Registers a function as the operator zoexport::`name`.
template <auto Function>
bool register_operator(const char* name) {
  return executorch::runtime::register_kernel(executorch::runtime::Kernel(name, Boxed<Function>::call)) == Error::Ok;
}

}  // namespace zoexport::ops
