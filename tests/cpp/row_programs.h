// Row programs written out, and a straightforward version of what they do in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/row_program.h"
#include "rng/normal.h"

namespace rows {

using zoexport::kernels::RowOp;

struct Input {
  size_t width, offset;
  std::vector<size_t> strides;
};

struct Step {
  RowOp op;
  int64_t dst, a, b = 0, c = 0;
};

struct Program {
  std::vector<size_t> dims;
  std::vector<Input> inputs;
  std::vector<size_t> widths;  // of the registers after the inputs
  std::vector<size_t> outputs;
  std::vector<Step> steps;
  std::vector<double> constants;

  size_t rows() const {
    size_t n = 1;
    for (const size_t d : dims) {
      n *= d;
    }
    return n;
  }
  size_t width(size_t reg) const { return reg < inputs.size() ? inputs[reg].width : widths[reg - inputs.size()]; }
  std::vector<int64_t> code() const {
    std::vector<int64_t> code;
    const auto add = [&](size_t value) { code.push_back(static_cast<int64_t>(value)); };
    add(dims.size());
    std::for_each(dims.begin(), dims.end(), add);
    add(inputs.size());
    for (const Input& input : inputs) {
      add(input.width);
      add(input.offset);
      std::for_each(input.strides.begin(), input.strides.end(), add);
    }
    add(inputs.size() + widths.size());
    for (size_t r = 0; r < inputs.size() + widths.size(); ++r) {
      add(width(r));
    }
    add(outputs.size());
    std::for_each(outputs.begin(), outputs.end(), add);
    for (const Step& s : steps) {
      for (const int64_t value : {static_cast<int64_t>(s.op), s.dst, s.a, s.b, s.c}) {
        code.push_back(value);
      }
    }
    return code;
  }
};

using Tensors = std::vector<std::vector<float>>;

inline std::vector<float> noise(uint32_t id, size_t n) {
  std::vector<float> values(n);
  zoexport::rng::normals(zoexport::rng::Stream{99, id, 0, 0}, 0, n, values.data());
  return values;
}

inline const char* parse(const std::vector<int64_t>& code, const Program& p, const std::vector<size_t>& sizes,
                         zoexport::kernels::RowProgram& parsed) {
  return zoexport::kernels::parse_row_program(code.data(), code.size(), p.constants.data(), p.constants.size(),
                                              sizes.data(), sizes.size(), parsed);
}

// As many elements as the input's rows reach.
inline size_t reach(const Program& p, const Input& input) {
  size_t end = input.offset + input.width;
  for (size_t d = 0; d < p.dims.size(); ++d) {
    end += (p.dims[d] - 1) * input.strides[d];
  }
  return end;
}

inline double apply(RowOp op, double a, double b, double c) {
  switch (op) {
    case RowOp::kAdd:
      return a + b;
    case RowOp::kSub:
      return a - b;
    case RowOp::kMul:
      return a * b;
    case RowOp::kDiv:
      return a / b;
    case RowOp::kMax:
      return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case RowOp::kMin:
      return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    case RowOp::kNeg:
      return -a;
    case RowOp::kExp:
      return std::exp(a);
    case RowOp::kLog:
      return std::log(a);
    case RowOp::kSqrt:
      return std::sqrt(a);
    case RowOp::kRsqrt:
      return 1.0 / std::sqrt(a);
    case RowOp::kReciprocal:
      return 1.0 / a;
    case RowOp::kSigmoid:
      return 1.0 / (1.0 + std::exp(-a));
    case RowOp::kTanh:
      return std::tanh(a);
    case RowOp::kErf:
      return std::erf(a);
    case RowOp::kAbs:
      return std::fabs(a);
    case RowOp::kLt:
      return a < b;
    case RowOp::kLe:
      return a <= b;
    case RowOp::kGt:
      return a > b;
    case RowOp::kGe:
      return a >= b;
    case RowOp::kEq:
      return a == b;
    case RowOp::kNe:
      return a != b;
    case RowOp::kSelect:
      return a != 0.0 ? b : c;
    default:
      return NAN;
  }
}

// What the program writes, element by element; results are (rows, width of the output).
inline std::vector<std::vector<double>> reference(const Program& p, const Tensors& tensors) {
  std::vector<std::vector<double>> results(p.outputs.size());
  for (size_t row = 0; row < p.rows(); ++row) {
    std::vector<std::vector<double>> regs(p.inputs.size() + p.widths.size());
    for (size_t r = 0; r < regs.size(); ++r) {
      regs[r].resize(p.width(r));
    }
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      size_t at = p.inputs[i].offset, left = row;
      for (size_t d = p.dims.size(); d-- > 0; left /= p.dims[d]) {
        at += left % p.dims[d] * p.inputs[i].strides[d];
      }
      for (size_t e = 0; e < p.inputs[i].width; ++e) {
        regs[i][e] = static_cast<double>(tensors[i].at(at + e));
      }
    }
    const auto value = [&](int64_t operand, size_t e) {
      if (operand < 0) {
        return static_cast<double>(static_cast<float>(p.constants[static_cast<size_t>(-1 - operand)]));
      }
      const std::vector<double>& reg = regs[static_cast<size_t>(operand)];
      return reg[reg.size() == 1 ? 0 : e];
    };
    for (const Step& s : p.steps) {
      std::vector<double>& dst = regs[static_cast<size_t>(s.dst)];
      const size_t a_width = s.a < 0 ? 1 : regs[static_cast<size_t>(s.a)].size();
      switch (s.op) {
        case RowOp::kSum:
          for (size_t e = 0; e < a_width; ++e) {
            dst[0] += value(s.a, e);
          }
          break;
        case RowOp::kRowMax:
          dst[0] = value(s.a, 0);
          for (size_t e = 1; e < a_width; ++e) {
            dst[0] = apply(RowOp::kMax, dst[0], value(s.a, e), 0);
          }
          break;
        case RowOp::kSlice:
          for (size_t e = 0; e < dst.size(); ++e) {
            dst[e] = regs[static_cast<size_t>(s.a)][static_cast<size_t>(s.c) + e];
          }
          break;
        case RowOp::kPut:
          for (size_t e = 0; e < a_width; ++e) {
            dst[static_cast<size_t>(s.c) + e] = regs[static_cast<size_t>(s.a)][e];
          }
          break;
        case RowOp::kFill:
          std::fill(dst.begin(), dst.end(), value(s.a, 0));
          break;
        default:
          for (size_t e = 0; e < dst.size(); ++e) {
            dst[e] = apply(s.op, value(s.a, e), value(s.b, e), value(s.c, e));
          }
      }
    }
    for (size_t k = 0; k < p.outputs.size(); ++k) {
      results[k].insert(results[k].end(), regs[p.outputs[k]].begin(), regs[p.outputs[k]].end());
    }
  }
  return results;
}

// ---- programs that occur; register numbers follow the inputs ----

// dgate = dy * up * s * (1 + gate * (1 - s)) and dup = dy * gate * s, with s = sigmoid(gate).
inline Program swiglu_backward(size_t n, size_t width) {
  Program p;
  p.dims = {n};
  p.inputs = {{width, 0, {width}}, {width, 0, {width}}, {width, 0, {width}}};  // gate, up, dy
  p.widths = std::vector<size_t>(8, width);
  p.outputs = {9, 10};
  p.constants = {1.0};
  p.steps = {{RowOp::kSigmoid, 3, 0}, {RowOp::kMul, 4, 2, 3}, {RowOp::kSub, 5, -1, 3}, {RowOp::kMul, 6, 0, 5},
             {RowOp::kAdd, 7, 6, -1}, {RowOp::kMul, 8, 4, 1}, {RowOp::kMul, 9, 8, 7},  {RowOp::kMul, 10, 4, 0}};
  return p;
}

// x * rsqrt(mean(x^2) + eps) * weight.
inline Program rms_norm(size_t n, size_t width) {
  Program p;
  p.dims = {n};
  p.inputs = {{width, 0, {width}}, {width, 0, {0}}};
  p.widths = {width, 1, 1, 1, 1, width, width};
  p.outputs = {8};
  p.constants = {1.0 / static_cast<double>(width), 1e-5};
  p.steps = {{RowOp::kMul, 2, 0, 0}, {RowOp::kSum, 3, 2},    {RowOp::kMul, 4, 3, -1}, {RowOp::kAdd, 5, 4, -2},
             {RowOp::kRsqrt, 6, 5},  {RowOp::kMul, 7, 0, 6}, {RowOp::kMul, 8, 7, 1}};
  return p;
}

// With r = rsqrt(mean(x^2) + eps) and g = dy * weight: dx = r * (g - x * r^2 * mean(g * x)).
inline Program rms_norm_backward(size_t n, size_t width) {
  Program p;
  p.dims = {n};
  p.inputs = {{width, 0, {width}}, {width, 0, {0}}, {width, 0, {width}}};  // x, weight, dy
  p.widths = {width, 1, 1, 1, 1, width, width, 1, 1, 1, 1, width, width, width};
  p.outputs = {16};
  p.constants = {1.0 / static_cast<double>(width), 1e-5};
  p.steps = {{RowOp::kMul, 3, 0, 0},    {RowOp::kSum, 4, 3},     {RowOp::kMul, 5, 4, -1},   {RowOp::kAdd, 6, 5, -2},
             {RowOp::kRsqrt, 7, 6},     {RowOp::kMul, 8, 2, 1},  {RowOp::kMul, 9, 8, 0},    {RowOp::kSum, 10, 9},
             {RowOp::kMul, 11, 10, -1}, {RowOp::kMul, 12, 7, 7}, {RowOp::kMul, 13, 11, 12}, {RowOp::kMul, 14, 0, 13},
             {RowOp::kSub, 15, 8, 14},  {RowOp::kMul, 16, 15, 7}};
  return p;
}

// softmax(scale * scores + mask) of scores (heads, rows, width) and a mask (rows, width).
inline Program softmax(size_t heads, size_t rows, size_t width) {
  Program p;
  p.dims = {heads, rows};
  p.inputs = {{width, 0, {rows * width, width}}, {width, 0, {0, width}}};
  p.widths = {width, width, 1, width, width, 1, 1, width};
  p.outputs = {9};
  p.constants = {0.125};
  p.steps = {{RowOp::kMul, 2, 0, -1}, {RowOp::kAdd, 3, 2, 1}, {RowOp::kRowMax, 4, 3},     {RowOp::kSub, 5, 3, 4},
             {RowOp::kExp, 6, 5},     {RowOp::kSum, 7, 6},    {RowOp::kReciprocal, 8, 7}, {RowOp::kMul, 9, 6, 8}};
  return p;
}

// x * cos + rotate_half(x) * sin of x (rows, heads, width) read as (heads, rows, width), tables (rows, width).
inline Program rotary(size_t rows, size_t heads, size_t width) {
  Program p;
  p.dims = {1, heads, rows};
  p.inputs = {
      {width, 0, {heads * rows * width, width, heads * width}}, {width, 0, {0, 0, width}}, {width, 0, {0, 0, width}}};
  p.widths = {width / 2, width / 2, width / 2, width, width, width, width};
  p.outputs = {9};
  const int64_t half = static_cast<int64_t>(width / 2);
  p.steps = {{RowOp::kSlice, 3, 0, 0, 0}, {RowOp::kSlice, 4, 0, 0, half}, {RowOp::kNeg, 5, 4},
             {RowOp::kPut, 6, 5, 0, 0},   {RowOp::kPut, 6, 3, 0, half},   {RowOp::kMul, 7, 0, 1},
             {RowOp::kMul, 8, 6, 2},      {RowOp::kAdd, 9, 7, 8}};
  return p;
}

}  // namespace rows
