// Row programs against element-by-element versions in double precision.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "kernels/row_program.h"
#include "row_programs.h"

using namespace rows;
using namespace zoexport::kernels;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const size_t kWidths[] = {1, 3, 15, 17, 64, 513, 4864};

std::vector<size_t> sizes_of(const Tensors& tensors) {
  std::vector<size_t> sizes;
  for (const std::vector<float>& tensor : tensors) {
    sizes.push_back(tensor.size());
  }
  return sizes;
}

Tensors noise_for(const Program& p) {
  Tensors tensors;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    tensors.push_back(noise(static_cast<uint32_t>(i + 1), reach(p, p.inputs[i])));
  }
  return tensors;
}

// Runs the program in ranges of `step` pieces.
Tensors run(const Program& p, const Tensors& tensors, size_t step) {
  RowProgram parsed;
  const char* broken = parse(p.code(), p, sizes_of(tensors), parsed);
  if (!CHECK(broken == nullptr)) {
    std::fprintf(stderr, "%s\n", broken);
    return {};
  }
  Tensors results;
  std::vector<const float*> in;
  std::vector<float*> out;
  for (const std::vector<float>& tensor : tensors) {
    in.push_back(tensor.data());
  }
  CHECK(parsed.outputs.size() == p.outputs.size());
  for (size_t k = 0; k < p.outputs.size(); ++k) {
    CHECK(parsed.outputs[k] == p.width(p.outputs[k]));
    results.emplace_back(p.rows() * p.width(p.outputs[k]), -77.0f);
  }
  for (std::vector<float>& result : results) {
    out.push_back(result.data());
  }
  for (size_t begin = 0; begin < parsed.pieces; begin += step) {
    CHECK(run_row_program(parsed, in.data(), out.data(), begin, std::min(parsed.pieces, begin + step)));
  }
  return results;
}

bool near(float found, double expected, double bound) {
  if (std::isnan(expected) || std::isinf(expected) || std::isinf(static_cast<float>(expected))) {
    const float wanted = static_cast<float>(expected);
    return std::isnan(wanted) ? std::isnan(found) : found == wanted;
  }
  return std::fabs(static_cast<double>(found) - expected) <= bound * (std::fabs(expected) + 1e-30);
}

// Every output within `relative` of the reference, or within `absolute`; any ranges of pieces give the same bits.
void check(const Program& p, const Tensors& tensors, double relative, double absolute = 0.0) {
  const Tensors whole = run(p, tensors, SIZE_MAX / 2);
  const std::vector<std::vector<double>> expected = reference(p, tensors);
  if (!CHECK(whole.size() == expected.size())) {
    return;
  }
  size_t wrong = 0;
  for (size_t k = 0; k < whole.size(); ++k) {
    CHECK(whole[k].size() == expected[k].size());
    for (size_t i = 0; i < whole[k].size(); ++i) {
      const double off = std::fabs(static_cast<double>(whole[k][i]) - expected[k][i]);
      if (!near(whole[k][i], expected[k][i], relative) && !(off <= absolute)) {
        if (++wrong <= 3) {
          std::fprintf(stderr, "op %d output %zu [%zu]: %.9g, not %.9g\n", static_cast<int>(p.steps[0].op), k, i,
                       static_cast<double>(whole[k][i]), expected[k][i]);
        }
      }
    }
  }
  CHECK(wrong == 0);
  for (const size_t step : {1u, 2u, 7u}) {
    const Tensors split = run(p, tensors, step);
    for (size_t k = 0; k < whole.size(); ++k) {
      CHECK(std::memcmp(split[k].data(), whole[k].data(), whole[k].size() * sizeof(float)) == 0);
    }
  }
}

size_t operands(RowOp op) {
  const int64_t code = static_cast<int64_t>(op);
  return op == RowOp::kSelect ? 3 : code < 10 || code >= 20 ? 2 : 1;
}

constexpr int64_t kElementwise[] = {0,  1,  2,  3,  4,  5,  10, 11, 12, 13, 14, 15,
                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26};

// Each operand in turn whole rows, a number a row, or a constant; rows dense, broadcast and permuted.
void elementwise_operations_broadcast() {
  for (const int64_t opcode : kElementwise) {
    const RowOp op = static_cast<RowOp>(opcode);
    for (const size_t width : kWidths) {
      for (size_t kinds = 0; kinds < (operands(op) == 1 ? 3u : operands(op) == 2 ? 9u : 27u); ++kinds) {
        Program p;
        p.dims = width > 600 ? std::vector<size_t>{2, 1, 2} : std::vector<size_t>{3, 2, 5};
        p.constants = {0.75, 1.5, -0.5};
        int64_t operand[3] = {};
        size_t widest = 1;
        for (size_t k = 0, kind = kinds; k < operands(op); ++k, kind /= 3) {
          const size_t row = kind % 3 == 0 ? width : 1;
          widest = std::max(widest, row);
          if (kind % 3 == 2) {
            operand[k] = -1 - static_cast<int64_t>(k);
            continue;
          }
          operand[k] = static_cast<int64_t>(p.inputs.size());
          const size_t a = p.dims[0], b = p.dims[1], c = p.dims[2];
          switch ((kinds + k) % 4) {  // dense, permuted, broadcast along the last dim, broadcast along others
            case 0:
              p.inputs.push_back({row, 0, {b * c * row, c * row, row}});
              break;
            case 1:
              p.inputs.push_back({row, 2, {row, a * row, a * b * row}});
              break;
            case 2:
              p.inputs.push_back({row, 1, {row, a * row, 0}});
              break;
            default:
              p.inputs.push_back({row, 0, {0, 0, row}});
              break;
          }
        }
        p.widths = {widest};
        p.outputs = {p.inputs.size()};
        p.steps = {{op, static_cast<int64_t>(p.inputs.size()), operand[0], operand[1], operand[2]}};
        check(p, noise_for(p), 4e-7, op == RowOp::kErf || op == RowOp::kLog ? 2e-7 : 0.0);
      }
    }
  }
}

double worst(RowOp op, const std::vector<float>& x, bool relative) {
  Program p;
  p.dims = {1};
  p.inputs = {{x.size(), 0, {0}}};
  p.widths = {x.size()};
  p.outputs = {1};
  p.steps = {{op, 1, 0}};
  const Tensors found = run(p, {x}, 1);
  double most = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = apply(op, static_cast<double>(x[i]), 0, 0);
    const double scale = relative ? std::fabs(expected) : 1.0;
    if (std::fabs(expected) < 1.2e-38 && found[0][i] == 0.0f) {
      continue;  // flushed
    }
    most = std::max(most, std::fabs(static_cast<double>(found[0][i]) - expected) / scale);
  }
  return most;
}

std::vector<float> grid(float from, float to, size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = from + (to - from) * (static_cast<float>(i) / static_cast<float>(n - 1));
  }
  return x;
}

void functions_are_accurate() {
  CHECK(worst(RowOp::kExp, grid(-87.33f, 88.72f, 400001), true) < 2e-7);
  CHECK(worst(RowOp::kExp, grid(-1.0f, 1.0f, 100001), true) < 2e-7);
  CHECK(worst(RowOp::kSigmoid, grid(-87.0f, 30.0f, 400001), true) < 3e-7);
  CHECK(worst(RowOp::kTanh, grid(-12.0f, 12.0f, 400001), true) < 3e-7);
  CHECK(worst(RowOp::kTanh, grid(-0.01f, 0.01f, 10001), true) < 2e-7);
  CHECK(worst(RowOp::kErf, grid(-6.0f, 6.0f, 400001), false) < 2e-7);
  std::vector<float> powers = grid(-87.0f, 88.0f, 100001);
  for (float& x : powers) {
    x = std::exp(x);
  }
  CHECK(worst(RowOp::kLog, powers, true) < 2e-7);
  CHECK(worst(RowOp::kLog, grid(0.5f, 2.0f, 100000), true) < 2e-7);
  CHECK(worst(RowOp::kLog, {1e-45f, 1e-40f, 1.1754943e-38f, 3.4e38f}, true) < 2e-7);
  CHECK(worst(RowOp::kRsqrt, powers, true) < 1.3e-7);
  CHECK(worst(RowOp::kSqrt, powers, true) < 0.7e-7);
}

void functions_at_the_edges() {
  const struct {
    RowOp op;
    float x, expected;
  } cases[] = {
      {RowOp::kExp, kInf, kInf},        {RowOp::kExp, -kInf, 0.0f},     {RowOp::kExp, kNan, kNan},
      {RowOp::kExp, 88.8f, kInf},       {RowOp::kExp, 1e30f, kInf},     {RowOp::kExp, -104.0f, 0.0f},
      {RowOp::kExp, -1e30f, 0.0f},      {RowOp::kExp, 0.0f, 1.0f},      {RowOp::kLog, 0.0f, -kInf},
      {RowOp::kLog, -0.0f, -kInf},      {RowOp::kLog, kInf, kInf},      {RowOp::kLog, -1.0f, kNan},
      {RowOp::kLog, kNan, kNan},        {RowOp::kLog, 1.0f, 0.0f},      {RowOp::kLog, -kInf, kNan},
      {RowOp::kSigmoid, kInf, 1.0f},    {RowOp::kSigmoid, -kInf, 0.0f}, {RowOp::kSigmoid, 1e9f, 1.0f},
      {RowOp::kSigmoid, -1e9f, 0.0f},   {RowOp::kSigmoid, kNan, kNan},  {RowOp::kTanh, kInf, 1.0f},
      {RowOp::kTanh, -kInf, -1.0f},     {RowOp::kTanh, 1e9f, 1.0f},     {RowOp::kTanh, -1e30f, -1.0f},
      {RowOp::kTanh, kNan, kNan},       {RowOp::kTanh, 1e-30f, 1e-30f}, {RowOp::kErf, kInf, 1.0f},
      {RowOp::kErf, -kInf, -1.0f},      {RowOp::kErf, 1e30f, 1.0f},     {RowOp::kErf, kNan, kNan},
      {RowOp::kRsqrt, 0.0f, kInf},      {RowOp::kRsqrt, kInf, 0.0f},    {RowOp::kSqrt, -1.0f, kNan},
      {RowOp::kReciprocal, 0.0f, kInf}, {RowOp::kAbs, -kInf, kInf},     {RowOp::kNeg, kInf, -kInf},
      {RowOp::kMax, kNan, kNan},        {RowOp::kMin, kNan, kNan},
  };
  for (const auto& one : cases) {
    for (const size_t width : {1u, 16u, 19u}) {
      Program p;
      p.dims = {1};
      p.inputs = {{width, 0, {0}}};
      p.widths = {width, width, 1};
      p.outputs = {1, 2};
      p.constants = {0.0};
      p.steps = {{one.op, 1, 0, -1}, {operands(one.op) == 2 ? one.op : RowOp::kMax, 2, -1, 0}};
      const Tensors found = run(p, {std::vector<float>(width, one.x)}, 1);
      for (const float value : found[0]) {
        if (!CHECK(std::isnan(one.expected) ? std::isnan(value) : value == one.expected)) {
          std::fprintf(stderr, "op %d of %g: %g\n", static_cast<int>(one.op), static_cast<double>(one.x),
                       static_cast<double>(value));
        }
      }
      for (const float value : found[1]) {
        CHECK(!std::isnan(one.x) || std::isnan(value));
      }
    }
  }
}

void reductions() {
  for (const size_t width : kWidths) {
    for (const std::vector<size_t>& strides : {std::vector<size_t>{5 * width, width}, {width, 3 * width}, {width, 0}}) {
      Program p;
      p.dims = {3, 5};
      p.inputs = {{width, 0, strides}};
      p.widths = {1, 1, width, width};
      p.outputs = {1, 2, 4};
      p.steps = {{RowOp::kSum, 1, 0}, {RowOp::kRowMax, 2, 0}, {RowOp::kSub, 3, 0, 2}, {RowOp::kMul, 4, 3, 1}};
      check(p, noise_for(p), 1e-6, 2e-3);
      Tensors tensors = noise_for(p);
      tensors[0][width / 2] = kNan;
      check(p, tensors, 1e-6, 2e-3);
    }
  }
  // Long sums do not lose digits: a million ones and a little more.
  Program p;
  p.dims = {1};
  p.inputs = {{1 << 20, 0, {0}}};
  p.widths = {1};
  p.outputs = {1};
  p.steps = {{RowOp::kSum, 1, 0}};
  check(p, {std::vector<float>(1 << 20, 0.1f)}, 1e-6);
}

void slices_puts_and_fills() {
  for (const size_t width : {4u, 15u, 64u, 513u}) {
    const size_t w = width, half = width / 2;
    Program p;
    p.dims = {2, 7};
    p.inputs = {{w, 3, {w, 2 * w}}, {1, 0, {0, 1}}};
    // 2, 3: parts of the input; 4: filled, with puts over it that overlap; 5: read between its puts; 6: a part of a
    // part; 7: filled from a register; 8: put together without a fill; 9: an output that is a part of 4.
    p.widths = {half, w - half, w, w, half - 1, w, w, half};
    p.outputs = {4, 5, 6, 7, 8, 9, 0, 8, 2};
    p.constants = {2.5};
    const int64_t h = static_cast<int64_t>(half);
    p.steps = {{RowOp::kSlice, 2, 0, 0, 0},
               {RowOp::kSlice, 3, 0, 0, h},
               {RowOp::kFill, 4, -1},
               {RowOp::kPut, 4, 2, 0, 1},
               {RowOp::kMul, 5, 4, 1},
               {RowOp::kSlice, 9, 4, 0, 1},
               {RowOp::kPut, 4, 1, 0, h},
               {RowOp::kSlice, 6, 3, 0, 1},
               {RowOp::kFill, 7, 1},
               {RowOp::kPut, 8, 3, 0, 0},
               {RowOp::kPut, 8, 2, 0, static_cast<int64_t>(w - half)}};
    check(p, noise_for(p), 1e-7);
  }
}

void programs_that_occur() {
  for (const size_t width : kWidths) {
    const size_t n = width > 600 ? 3 : 37;
    Program p = swiglu_backward(n, width);
    check(p, noise_for(p), 2e-6, 1e-6);
    p = rms_norm(n, width);
    check(p, noise_for(p), 1e-6);
    p = rms_norm_backward(n, width);
    check(p, noise_for(p), 2e-6, 2e-6);
    p = softmax(3, n, width);
    Tensors tensors = noise_for(p);
    for (size_t i = 0; i < tensors[1].size(); ++i) {
      tensors[1][i] = i % 3 == 1 ? -kInf : 0.0f;
    }
    for (size_t row = 0; row < n; ++row) {
      tensors[1][row * width] = 0.0f;
    }
    check(p, tensors, 2e-6);
    p = rotary(n, 3, 2 * width);
    check(p, noise_for(p), 1e-6, 1e-6);
  }
}

// Many registers alive at once, and many that take each other's places.
void registers_share_scratch() {
  Program p;
  p.dims = {40};
  p.inputs = {{33, 0, {33}}};
  int64_t last = 0;
  for (int64_t r = 1; r < 200; ++r) {
    p.widths.push_back(33);
    p.steps.push_back({r % 3 == 0 ? RowOp::kMin : RowOp::kMax, r, last, r < 60 ? r / 2 : 0});
    last = r;
  }
  p.outputs = {static_cast<size_t>(last), 100};
  check(p, noise_for(p), 1e-7);
}

}  // namespace

int main() {
  elementwise_operations_broadcast();
  functions_are_accurate();
  functions_at_the_edges();
  reductions();
  slices_puts_and_fills();
  programs_that_occur();
  registers_share_scratch();
  return check::result();
}
