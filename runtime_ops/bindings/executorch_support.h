// What the operators of namespace zoexport share: checks of their arguments, sizes of their results, threads.
// Every argument is checked; a bad one fails the call with InvalidArgument and the process lives on.
#pragma once

#ifndef ET_USE_THREADPOOL
#define ET_USE_THREADPOOL  // libexecutorch_threadpool.so is linked: parallel_for is its function
#endif

#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <array>
#include <cstdint>
#include <optional>

namespace zoexport::ops {

using executorch::aten::ArrayRef;
using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::KernelRuntimeContext;

// Fails the call, with the operator and the rule in the log, and returns `result` where `cond` does not hold.
#define ZO_CHECK(ctx, cond, result, rule) \
  ET_KERNEL_CHECK_MSG(ctx, cond, InvalidArgument, result, "%s: %s", __func__, rule)

inline bool is_dense(const Tensor& t, ScalarType type) {
  return t.scalar_type() == type && executorch::runtime::tensor_is_contiguous(t);
}

inline bool is_one(const Tensor& t, ScalarType type) { return t.scalar_type() == type && t.numel() == 1; }

// The one element of an int64 tensor, where it is a u32.
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

// Of (..., width).
inline size_t rows_of(const Tensor& x) {
  size_t rows = 1;
  for (ssize_t axis = 0; axis + 1 < x.dim(); ++axis) {
    rows *= static_cast<size_t>(x.size(axis));
  }
  return rows;
}

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

// Splits begin..end-1 over the runtime's threads; false where the pool refused.
template <typename Body>
bool parallel(size_t count, size_t grain, const Body& body) {
  return count == 0 || executorch::extension::parallel_for(0, static_cast<int64_t>(count), static_cast<int64_t>(grain),
                                                           [&](int64_t begin, int64_t end) {
                                                             body(static_cast<size_t>(begin), static_cast<size_t>(end));
                                                           });
}

}  // namespace zoexport::ops
