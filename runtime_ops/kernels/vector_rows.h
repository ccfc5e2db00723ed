// Rows of a stored matrix as load_columns of vector_products.h reads them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {
namespace detail {

inline constexpr size_t kBytes = 16;  // of a row that load_columns reads
inline constexpr size_t kFloats = kBytes / sizeof(float);
inline constexpr size_t kInt4 = 2 * kBytes;
inline constexpr size_t kInt8 = kBytes;

// Start addresses of kLanes rows of `stride` elements. Rows past the end repeat the last one.
template <typename V, typename T>
struct Rows {
  const char* begin[V::kLanes];

  Rows(const T* values, size_t stride, size_t first, size_t end) {
    for (size_t i = 0; i < V::kLanes; ++i) {
      const size_t row = first + i < end ? first + i : end - 1;
      begin[i] = reinterpret_cast<const char*>(values + row * stride);
    }
  }
};

}  // namespace detail
}  // namespace kernels
}  // namespace zoexport
