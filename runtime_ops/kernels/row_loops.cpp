#include "row_loops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "each_width.h"
#include "row_math.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kLanes = 16;
// Lanes of a sum are added up in double after this many elements, so that the error does not grow with the width.
constexpr size_t kRun = 512;

// Like torch: NaN if either is NaN. Two selects instead of one with two conditions, which GCC does not vectorize.
ZO_INLINE float greater(float a, float b) {
  const float most = a > b ? a : b;
  return a != a ? a : most;
}

ZO_INLINE float lesser(float a, float b) {
  const float least = a < b ? a : b;
  return a != a ? a : least;
}

template <typename Function>
ZO_INLINE void unary(const RowLoop& loop, Function f) {
  const size_t width = loop.width;
  if (width == 1) {
    for (size_t r = 0; r < loop.rows; ++r) {
      loop.dst[r * loop.dst_pitch] = f(loop.a.data[r * loop.a.pitch]);
    }
    return;
  }
  for (size_t r = 0; r < loop.rows; ++r) {
    float* __restrict d = loop.dst + r * loop.dst_pitch;
    const float* a = loop.a.data + r * loop.a.pitch;
    if (loop.a.one) {
      const float value = f(*a);
      for (size_t i = 0; i < width; ++i) {
        d[i] = value;
      }
    } else {
      for (size_t i = 0; i < width; ++i) {
        d[i] = f(a[i]);
      }
    }
  }
}

template <typename Function>
ZO_INLINE void binary(const RowLoop& loop, Function f) {
  const size_t width = loop.width;
  if (width == 1) {
    for (size_t r = 0; r < loop.rows; ++r) {
      loop.dst[r * loop.dst_pitch] = f(loop.a.data[r * loop.a.pitch], loop.b.data[r * loop.b.pitch]);
    }
    return;
  }
  for (size_t r = 0; r < loop.rows; ++r) {
    float* __restrict d = loop.dst + r * loop.dst_pitch;
    const float* a = loop.a.data + r * loop.a.pitch;
    const float* b = loop.b.data + r * loop.b.pitch;
    if (!loop.a.one && !loop.b.one) {
      for (size_t i = 0; i < width; ++i) {
        d[i] = f(a[i], b[i]);
      }
    } else if (!loop.a.one) {
      const float other = *b;
      for (size_t i = 0; i < width; ++i) {
        d[i] = f(a[i], other);
      }
    } else if (!loop.b.one) {
      const float other = *a;
      for (size_t i = 0; i < width; ++i) {
        d[i] = f(other, b[i]);
      }
    } else {
      const float value = f(*a, *b);
      for (size_t i = 0; i < width; ++i) {
        d[i] = value;
      }
    }
  }
}

ZO_INLINE void select_rows(const RowLoop& loop) {
  const size_t width = loop.width;
  for (size_t r = 0; r < loop.rows; ++r) {
    float* __restrict d = loop.dst + r * loop.dst_pitch;
    const float* a = loop.a.data + r * loop.a.pitch;
    const float* b = loop.b.data + r * loop.b.pitch;
    const float* c = loop.c.data + r * loop.c.pitch;
    if (loop.a.one) {
      const bool first = *a != 0.0f;
      const float* from = first ? b : c;
      const size_t step = (first ? loop.b.one : loop.c.one) ? 0 : 1;
      for (size_t i = 0; i < width; ++i) {
        d[i] = from[i * step];
      }
    } else if (!loop.b.one && !loop.c.one) {
      for (size_t i = 0; i < width; ++i) {
        const float yes = b[i], no = c[i];
        d[i] = a[i] != 0.0f ? yes : no;
      }
    } else if (!loop.b.one) {
      const float no = *c;
      for (size_t i = 0; i < width; ++i) {
        const float yes = b[i];
        d[i] = a[i] != 0.0f ? yes : no;
      }
    } else if (!loop.c.one) {
      const float yes = *b;
      for (size_t i = 0; i < width; ++i) {
        const float no = c[i];
        d[i] = a[i] != 0.0f ? yes : no;
      }
    } else {
      const float yes = *b, no = *c;
      for (size_t i = 0; i < width; ++i) {
        d[i] = a[i] != 0.0f ? yes : no;
      }
    }
  }
}

// Four floats, as every 64-bit processor has them. Written out for reductions, whose lanes GCC else keeps in memory;
// the additions of 16 lanes overlap enough that wider registers would gain little.
typedef float Four __attribute__((vector_size(16)));

ZO_INLINE Four load(const float* from) {
  Four v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

float sum_of(const float* row, size_t width) {
  double total = 0.0;
  size_t i = 0;
  while (width - i >= kLanes) {
    const size_t end = i + std::min(kRun, (width - i) / kLanes * kLanes);
    Four lane[4] = {};
    // Four at a time, so that a lane has fewer additions that wait for the one before.
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      for (size_t j = 0; j < 4; ++j) {
        const float* v = row + i + 4 * j;
        lane[j] += (load(v) + load(v + kLanes)) + (load(v + 2 * kLanes) + load(v + 3 * kLanes));
      }
    }
    for (; i < end; i += kLanes) {
      for (size_t j = 0; j < 4; ++j) {
        lane[j] += load(row + i + 4 * j);
      }
    }
    const Four sum = (lane[0] + lane[1]) + (lane[2] + lane[3]);
    total += static_cast<double>((sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
  float rest = 0.0f;
  for (; i < width; ++i) {
    rest = rest + row[i];
  }
  return static_cast<float>(total + static_cast<double>(rest));
}

float greatest_of(const float* row, size_t width) {
  float most = row[0];
  size_t i = 0;
  if (width >= kLanes) {
    Four lane[4];
    for (size_t j = 0; j < 4; ++j) {
      lane[j] = load(row + 4 * j);
    }
    auto unordered = lane[0] != lane[0];  // NOLINT(misc-redundant-expression): true of a NaN
    for (; i + kLanes <= width; i += kLanes) {
      for (size_t j = 0; j < 4; ++j) {
        const Four v = load(row + i + 4 * j);
        lane[j] = v > lane[j] ? v : lane[j];
        unordered |= v != v;  // NOLINT(misc-redundant-expression): true of a NaN
      }
    }
    for (size_t j = 0; j < 4; ++j) {
      if (unordered[j]) {
        return std::numeric_limits<float>::quiet_NaN();
      }
      for (const Four& part : lane) {
        most = greater(part[j], most);
      }
    }
  }
  for (; i < width; ++i) {
    most = greater(row[i], most);
  }
  return most;
}

template <typename Function>
void reduce(const RowLoop& loop, Function f) {
  for (size_t r = 0; r < loop.rows; ++r) {
    loop.dst[r * loop.dst_pitch] = f(loop.a.data + r * loop.a.pitch, loop.width);
  }
}

ZO_EACH_WIDTH void run_elementwise(RowOp op, const RowLoop& loop) {
  switch (op) {
    case RowOp::kAdd:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a + b; });
    case RowOp::kSub:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a - b; });
    case RowOp::kMul:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a * b; });
    case RowOp::kDiv:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a / b; });
    case RowOp::kMax:
      return binary(loop, greater);
    case RowOp::kMin:
      return binary(loop, lesser);
    case RowOp::kNeg:
      return unary(loop, [](float a) __attribute__((always_inline)) { return -a; });
    case RowOp::kExp:
      return unary(loop, row_math::exp);
    case RowOp::kLog:
      return unary(loop, row_math::log);
    case RowOp::kSqrt:
      return unary(loop, [](float a) __attribute__((always_inline)) { return std::sqrt(a); });
    case RowOp::kRsqrt:
      return unary(loop, [](float a) __attribute__((always_inline)) { return 1.0f / std::sqrt(a); });
    case RowOp::kReciprocal:
      return unary(loop, [](float a) __attribute__((always_inline)) { return 1.0f / a; });
    case RowOp::kSigmoid:
      return unary(loop, row_math::sigmoid);
    case RowOp::kTanh:
      return unary(loop, row_math::tanh);
    case RowOp::kErf:
      return unary(loop, row_math::erf);
    case RowOp::kAbs:
      return unary(loop, [](float a) __attribute__((always_inline)) { return std::fabs(a); });
    case RowOp::kLt:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a < b ? 1.0f : 0.0f; });
    case RowOp::kLe:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a <= b ? 1.0f : 0.0f; });
    case RowOp::kGt:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a > b ? 1.0f : 0.0f; });
    case RowOp::kGe:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a >= b ? 1.0f : 0.0f; });
    case RowOp::kEq:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a == b ? 1.0f : 0.0f; });
    case RowOp::kNe:
      return binary(loop, [](float a, float b) __attribute__((always_inline)) { return a != b ? 1.0f : 0.0f; });
    case RowOp::kSelect:
      return select_rows(loop);
    case RowOp::kSum:
    case RowOp::kRowMax:
      return;  // run_row_loop has them
    case RowOp::kSlice:
    case RowOp::kPut:
    case RowOp::kFill:
      return unary(loop, [](float a) __attribute__((always_inline)) { return a; });
  }
}

size_t operands(RowOp op) {
  const int64_t code = static_cast<int64_t>(op);
  return op == RowOp::kSelect ? 3 : code < 10 || (code >= 20 && code < 30) ? 2 : 1;
}

}  // namespace

void run_row_loop(RowOp op, RowLoop& loop) {
  if (op == RowOp::kSum) {
    return reduce(loop, sum_of);
  }
  if (op == RowOp::kRowMax) {
    return reduce(loop, greatest_of);
  }
  RowOperand* const used[] = {&loop.a, &loop.b, &loop.c};
  const size_t count = operands(op);
  // Rows that follow each other in memory are one long row.
  bool joined = loop.dst_pitch == loop.width;
  for (size_t i = 0; i < count; ++i) {
    const RowOperand& operand = *used[i];
    joined = joined && (operand.pitch == (operand.one ? 0 : loop.width) || (loop.width == 1 && operand.pitch <= 1));
  }
  if (joined) {
    for (size_t i = 0; i < count; ++i) {
      used[i]->one = used[i]->pitch == 0;
    }
    loop.width *= loop.rows;
    loop.rows = 1;
  }
  run_elementwise(op, loop);
}

}  // namespace kernels
}  // namespace zoexport
