#include "int4.h"

#include <algorithm>
#include <cstring>

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kUnit = 32;    // every group is a multiple of this, so a unit has one scale
constexpr size_t kRows = 4;     // weight rows that are unpacked together and used for all T
constexpr size_t kDepth = 256;  // of K at a time: kRows * kDepth floats stay in the L1 cache
constexpr size_t kLanes = 8;    // partial sums of a dot product

inline float bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Elements first .. first+count-1 of a row; both are multiples of kUnit.
void dequantize(const Int4Matrix& weight, size_t row, size_t first, size_t count, float* out) {
  const uint8_t* codes = weight.codes + row * (weight.K / 2) + first / 2;
  const uint16_t* scales = weight.scales + row * (weight.K / weight.group_size);
  for (size_t k = 0; k < count; k += kUnit) {
    const float scale = bfloat16(scales[(first + k) / weight.group_size]);
    for (size_t i = 0; i < kUnit / 2; ++i) {
      const int32_t byte = codes[k / 2 + i];
      out[k + 2 * i] = static_cast<float>((byte & 15) - 8) * scale;
      out[k + 2 * i + 1] = static_cast<float>((byte >> 4) - 8) * scale;
    }
  }
}

inline float add_lanes(const float* lane) {
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

}  // namespace

bool int4_valid(const Int4Matrix& weight) {
  return weight.group_size > 0 && weight.group_size % kUnit == 0 && weight.K > 0 && weight.K % weight.group_size == 0;
}

void int4_dequantize_row(const Int4Matrix& weight, size_t row, float* out) {
  dequantize(weight, row, 0, weight.K, out);
}

void linear_int4_columns(const float* x, size_t T, const Int4Matrix& weight, const float* bias, size_t begin,
                         size_t end, float* y) {
  float tile[kRows][kDepth];
  for (size_t n = begin; n < end; n += kRows) {
    const size_t rows = std::min(kRows, end - n);
    for (size_t k = 0; k < weight.K; k += kDepth) {
      const size_t depth = std::min(kDepth, weight.K - k);
      for (size_t r = 0; r < kRows; ++r) {
        // Rows past the end repeat the last one; their sums are not stored.
        dequantize(weight, n + std::min(r, rows - 1), k, depth, tile[r]);
      }
      for (size_t t = 0; t < T; ++t) {
        const float* row = x + t * weight.K + k;
        float lane[kRows][kLanes] = {};
        for (size_t i = 0; i < depth; i += kLanes) {
          for (size_t r = 0; r < kRows; ++r) {
            for (size_t j = 0; j < kLanes; ++j) {
              lane[r][j] = lane[r][j] + row[i + j] * tile[r][i + j];
            }
          }
        }
        float* out = y + t * weight.N + n;
        for (size_t r = 0; r < rows; ++r) {
          const float before = k > 0 ? out[r] : (bias != nullptr ? bias[n + r] : 0.0f);
          out[r] = before + add_lanes(lane[r]);
        }
      }
    }
  }
}

bool linear_int4(const float* x, size_t T, const Int4Matrix& weight, const float* bias, float* y) {
  if (!int4_valid(weight)) {
    return false;
  }
  linear_int4_columns(x, T, weight, bias, 0, weight.N, y);
  return true;
}

bool embedding_int4(const Int4Matrix& weight, const int64_t* indices, size_t T, float* out) {
  if (!int4_valid(weight)) {
    return false;
  }
  for (size_t t = 0; t < T; ++t) {
    if (indices[t] < 0 || static_cast<uint64_t>(indices[t]) >= weight.N) {
      return false;
    }
  }
  for (size_t t = 0; t < T; ++t) {
    int4_dequantize_row(weight, static_cast<size_t>(indices[t]), out + t * weight.K);
  }
  return true;
}

}  // namespace kernels
}  // namespace zoexport
