#include "rounded.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "each_width.h"
#include "packed_rows.h"
#include "scratch.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kWorthAThread = size_t{1} << 16;      // multiply-adds of integers
constexpr size_t kRowsWorthAThread = size_t{1} << 15;  // numbers to round
constexpr float kLeast = 1e-30f;                       // of a group's greatest magnitude: 127 / it is finite
constexpr uint32_t kInfinity = 0x7F800000u;
constexpr float kNearest = 12582912.0f;  // 1.5 * 2^23: added to a number, its nearest integer is in the low bits
constexpr uint32_t kNearestBits = 0x4B400000u;

typedef int8_t Bytes __attribute__((vector_size(16)));

// A row of x; scales and offsets of its groups are `stride` apart. As bits, magnitudes are in the order of their numbers, and what is not finite is above them.
ZO_EACH_WIDTH
void round_row(const float* x, size_t groups, int8_t* codes, float* scales, int32_t* offsets, size_t stride) {
  for (size_t g = 0; g < groups; ++g, x += kRoundedGroup, codes += kRoundedGroup) {
    uint32_t most = 0;
    for (size_t i = 0; i < kRoundedGroup; ++i) {
      uint32_t bits;
      std::memcpy(&bits, x + i, sizeof(bits));
      most = std::max(most, bits & 0x7FFFFFFFu);
    }
    float greatest;
    std::memcpy(&greatest, &most, sizeof(greatest));
    const bool finite = most < kInfinity, zero = !finite || greatest < kLeast;
    const float inverse = zero ? 0.0f : 127.0f / greatest;
    int8_t rounded[kRoundedGroup];
    int32_t sum = 0;
    for (size_t i = 0; i < kRoundedGroup; ++i) {
      const float moved = (zero ? 0.0f : x[i]) * inverse + kNearest;
      uint32_t whole;
      std::memcpy(&whole, &moved, sizeof(whole));
      const auto q = static_cast<int32_t>(whole - kNearestBits);
      rounded[i] = static_cast<int8_t>(q);
      sum += q;
    }
    for (size_t i = 0; i < kRoundedGroup; i += sizeof(Bytes)) {
      Bytes part;
      std::memcpy(&part, rounded + i, sizeof(part));
      part = __builtin_shufflevector(part, part, 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
      std::memcpy(codes + i, &part, sizeof(part));
    }
    scales[g * stride] = finite ? (zero ? 0.0f : greatest / 127.0f) : std::numeric_limits<float>::quiet_NaN();
    offsets[g * stride] = -8 * sum;
  }
}

}  // namespace

size_t rounded_floats(size_t rows, size_t K) {
  return rows * (K / sizeof(float) + K / kRoundedGroup * (sizeof(float) + sizeof(int32_t)) / sizeof(float));
}

RoundedRows rounded_in(float* memory, size_t rows, size_t K) {
  const size_t groups = rows * (K / kRoundedGroup), of_codes = rows * K / sizeof(float);
  float* const scales = memory + of_codes;
  return {rows, K, reinterpret_cast<int8_t*>(memory), scales, reinterpret_cast<int32_t*>(scales + groups)};
}

Tasks tasks_of(const RoundRows& product) {
  const size_t work = std::max<size_t>(1, product.out.rows * product.out.K);
  return {product.out.rows, std::max<size_t>(1, product.out.rows * kRowsWorthAThread / work)};
}

bool run_tasks(const RoundRows& product, size_t begin, size_t end) {
  const RoundedRows& out = product.out;
  const size_t groups = out.K / kRoundedGroup;
  for (size_t row = begin; row < end; ++row) {
    round_row(product.x + row * out.K, groups, out.codes + row * out.K, out.scales + row, out.offsets + row, out.rows);
  }
  return true;
}

RoundedLinear rounded_linear(const Int8Matrix& weight, const float* bias, float* y) {
  return {{}, {nullptr, nullptr, weight.N, weight.K, kRoundedGroup}, bias, y, weight};
}

Tasks tasks_of(const RoundedLinear& product, const RoundedKernels& kernels) {
  return tasks_of(RoundedLinears{&product, 1}, kernels);
}

bool run_tasks(const RoundedLinear& product, size_t begin, size_t end, const RoundedKernels& kernels) {
  const size_t rows = product.x.rows;
  if (rows == 0) {
    return true;
  }
  const bool bytes = product.bytes.codes != nullptr;
  if (rows <= kernels.few_rows && !bytes) {
    for (size_t task = begin; task < end; ++task) {
      kernels.multiply_few(product, 0, rows, task * kernels.lanes);
    }
    return true;
  }
  static thread_local Scratch scratch;
  const size_t floats = kernels.panel_floats * (product.x.K / kRoundedGroup);
  float* panel = scratch.floats(kernels.panels * floats);
  if (panel == nullptr) {
    return false;
  }
  const size_t pieces = divide_up(rows, kernels.panel_rows);
  for (size_t task = begin; task < end; task += kernels.panels) {
    const size_t panels = std::min(kernels.panels, end - task);
    for (size_t i = 0; i < panels; ++i) {
      const size_t column = (task + i) * kernels.lanes;
      bytes ? kernels.fill_bytes(product.bytes, column, panel + i * floats)
            : kernels.fill(product.weight, column, panel + i * floats);
    }
    for (size_t piece = 0; piece < pieces; ++piece) {  // of nearly the same height
      const size_t first = piece * rows / pieces;
      (bytes ? kernels.multiply_bytes : kernels.multiply)(product, first, (piece + 1) * rows / pieces - first,
                                                          task * kernels.lanes, panel, panels);
    }
  }
  return true;
}

Tasks tasks_of(const RoundedLinears& product, const RoundedKernels& kernels) {
  size_t count = 0, work = 0;
  for (size_t i = 0; i < product.count; ++i) {
    const RoundedLinear& layer = product.layers[i];
    count += divide_up(layer.weight.N, kernels.lanes);
    work += layer.x.rows * layer.weight.N * layer.weight.K;
  }
  return {count, std::max<size_t>(1, count * kWorthAThread / std::max<size_t>(1, work))};
}

bool run_tasks(const RoundedLinears& product, size_t begin, size_t end, const RoundedKernels& kernels) {
  size_t first = 0;  // of the layer's tasks
  for (size_t i = 0; i < product.count && first < end; ++i) {
    const RoundedLinear& layer = product.layers[i];
    const size_t count = divide_up(layer.weight.N, kernels.lanes);
    const size_t from = std::max(begin, first), to = std::min(end, first + count);
    if (from < to && !run_tasks(layer, from - first, to - first, kernels)) {
      return false;
    }
    first += count;
  }
  return true;
}

}  // namespace kernels
}  // namespace zoexport
