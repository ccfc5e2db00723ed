#include "row_code.h"

#include <algorithm>

namespace zoexport {
namespace kernels {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 48;

class Parser {
 public:
  Parser(const int64_t* code, size_t length, size_t constants, RowProgram& program, RowCode& result)
      : next_(code), end_(code + length), constants_(constants), p_(program), result_(result) {}

  const char* parse(const size_t* sizes, size_t input_count) {
    const char* broken = iteration();
    broken = broken ? broken : inputs(sizes, input_count);
    broken = broken ? broken : registers();
    broken = broken ? broken : outputs();
    broken = broken ? broken : instructions();
    return broken;
  }

 private:
  struct Writes {
    bool whole = false;
    bool put = false;
  };

  // The next number, where it lies in [least, most].
  bool take(int64_t least, int64_t most, int64_t& value) {
    if (next_ == end_ || *next_ < least || *next_ > most) {
      return false;
    }
    value = *next_++;
    return true;
  }
  bool take(int64_t least, int64_t most, size_t& value) {
    int64_t number = 0;
    if (!take(least, most, number)) {
      return false;
    }
    value = static_cast<size_t>(number);
    return true;
  }

  const char* iteration() {
    if (!take(1, kRowMaxRank, p_.rank)) {
      return "code: rank must be 1 to 5";
    }
    int64_t rows = 1;
    for (size_t d = 0; d < p_.rank; ++d) {
      if (!take(1, kMaxElements, p_.dims[d]) || __builtin_mul_overflow(rows, static_cast<int64_t>(p_.dims[d]), &rows) ||
          rows > kMaxElements) {
        return "code: dims must be positive, their product at most 2^48";
      }
    }
    p_.rows = static_cast<size_t>(rows);
    return nullptr;
  }

  const char* inputs(const size_t* sizes, size_t input_count) {
    size_t count = 0;
    if (!take(0, kRowMaxRegisters, count) || count != input_count) {
      return "code: the number of inputs must be that of the tensors";
    }
    p_.inputs.resize(count);
    p_.registers.resize(count);
    for (size_t i = 0; i < count; ++i) {
      RowProgram::Input& input = p_.inputs[i];
      size_t& width = p_.registers[i].width;
      if (!take(1, kMaxElements, width) || !take(0, kMaxElements, input.offset)) {
        return "code: an input's width must be positive, its offset not negative";
      }
      int64_t end = static_cast<int64_t>(width + input.offset);
      for (size_t d = 0; d < p_.rank; ++d) {
        int64_t reach = 0;
        if (!take(0, kMaxElements, input.strides[d]) ||
            __builtin_mul_overflow(static_cast<int64_t>(input.strides[d]), static_cast<int64_t>(p_.dims[d]) - 1,
                                   &reach) ||
            __builtin_add_overflow(end, reach, &end)) {
          return "code: an input's strides must not be negative";
        }
      }
      if (static_cast<uint64_t>(end) > sizes[i]) {
        return "code: an input's rows must lie in its tensor";
      }
    }
    return nullptr;
  }

  const char* registers() {
    size_t count = 0;
    if (!take(static_cast<int64_t>(p_.inputs.size()), kRowMaxRegisters, count)) {
      return "code: registers must be the inputs and more, at most 256";
    }
    p_.registers.resize(count);
    for (size_t r = 0; r < count; ++r) {
      const size_t known = p_.registers[r].width;
      if (!take(1, kMaxElements, p_.registers[r].width) || (r < p_.inputs.size() && p_.registers[r].width != known)) {
        return "code: a register's width must be positive, an input's that of its rows";
      }
      p_.wide = std::max(p_.wide, p_.registers[r].width);
    }
    if (p_.wide > static_cast<size_t>(kMaxElements) / p_.rows) {
      return "code: rows must have at most 2^48 elements together";
    }
    writes_.resize(count);
    for (size_t r = 0; r < p_.inputs.size(); ++r) {
      writes_[r].whole = true;
    }
    return nullptr;
  }

  const char* outputs() {
    size_t count = 0;
    if (!take(1, kRowMaxRegisters, count)) {
      return "code: there must be an output";
    }
    result_.outputs.resize(count);
    for (size_t k = 0; k < count; ++k) {
      if (!take(0, static_cast<int64_t>(p_.registers.size()) - 1, result_.outputs[k])) {
        return "code: an output must be a register";
      }
      p_.outputs.push_back(width(static_cast<int64_t>(result_.outputs[k])));
    }
    return nullptr;
  }

  const char* instructions() {
    const size_t count = static_cast<size_t>(end_ - next_) / 5;
    if (static_cast<size_t>(end_ - next_) != 5 * count || count > kRowMaxInstructions) {
      return "code: instructions must be five numbers each, at most 1024";
    }
    for (size_t i = 0; i < count; ++i, next_ += 5) {
      const size_t operands = row_operand_count(next_[0]);
      if (operands == 0) {
        return "code: no such opcode";
      }
      const RowInstruction in{static_cast<RowOp>(next_[0]), next_[1], next_[2], next_[3], next_[4]};
      if (in.dst < static_cast<int64_t>(p_.inputs.size()) || in.dst >= static_cast<int64_t>(p_.registers.size())) {
        return "code: dst must be a register that is no input";
      }
      for (size_t k = 0; k < operands; ++k) {
        if (const char* broken = operand(next_[2 + k])) {
          return broken;
        }
      }
      if (const char* broken = write(in, operands)) {
        return broken;
      }
      result_.instructions.push_back(in);
    }
    for (const size_t reg : result_.outputs) {
      if (!is_written(reg)) {
        return "code: an output must be written";
      }
    }
    for (const Writes& writes : writes_) {
      result_.is_put_target.push_back(writes.put);
    }
    return nullptr;
  }

  size_t width(int64_t operand) const { return operand < 0 ? 1 : p_.registers[static_cast<size_t>(operand)].width; }

  const char* operand(int64_t value) const {
    if (value < 0) {
      return value >= -static_cast<int64_t>(constants_) ? nullptr : "code: no such constant";
    }
    if (value >= static_cast<int64_t>(p_.registers.size())) {
      return "code: no such register";
    }
    return is_written(static_cast<size_t>(value)) ? nullptr : "code: a register must be written before it is read";
  }

  // Return whether every element of the register has a value: it was written whole, or its puts leave no gap.
  bool is_written(size_t reg) const {
    if (writes_[reg].whole || !writes_[reg].put) {
      return writes_[reg].whole;
    }
    size_t covered = 0;
    for (bool grew = true; grew && covered < p_.registers[reg].width;) {
      grew = false;
      for (const RowInstruction& in : result_.instructions) {
        const size_t begin = static_cast<size_t>(in.c);
        if (in.op == RowOp::kPut && in.dst == static_cast<int64_t>(reg) && begin <= covered &&
            begin + width(in.a) > covered) {
          covered = begin + width(in.a);
          grew = true;
        }
      }
    }
    return covered == p_.registers[reg].width;
  }

  // The widths of an instruction, and that it may write its dst.
  const char* write(const RowInstruction& in, size_t operands) {
    const int64_t dst = static_cast<int64_t>(width(in.dst));
    const int64_t a = static_cast<int64_t>(width(in.a));
    Writes& writes = writes_[static_cast<size_t>(in.dst)];
    if (in.op == RowOp::kPut) {
      if (in.a < 0 || in.a == in.dst || in.c < 0 || in.c > dst - a) {
        return "code: put must write a register to elements that dst has";
      }
      writes.put = true;
      return nullptr;
    }
    if (writes.whole || writes.put) {
      return "code: only puts may write a register again";
    }
    writes.whole = true;
    switch (in.op) {
      case RowOp::kSum:
      case RowOp::kRowMax:
        return in.a >= 0 && dst == 1 ? nullptr : "code: a reduction must be of a register to width 1";
      case RowOp::kSlice:
        return in.a >= 0 && in.c >= 0 && in.c <= a - dst ? nullptr : "code: slice must read elements that a has";
      case RowOp::kFill:
        return a == 1 ? nullptr : "code: fill must be with a constant or a register of width 1";
      default:
        break;
    }
    const int64_t values[] = {in.a, in.b, in.c};
    int64_t widest = 1;
    for (size_t k = 0; k < operands; ++k) {
      widest = std::max(widest, static_cast<int64_t>(width(values[k])));
    }
    for (size_t k = 0; k < operands; ++k) {
      if (width(values[k]) != 1 && static_cast<int64_t>(width(values[k])) != widest) {
        return "code: operands must have one width or width 1";
      }
    }
    return dst == widest ? nullptr : "code: dst must have the width of its operands";
  }

  const int64_t* next_;
  const int64_t* end_;
  size_t constants_;
  RowProgram& p_;
  RowCode& result_;
  std::vector<Writes> writes_;
};

}  // namespace

size_t row_operand_count(int64_t opcode) {
  if ((opcode >= 0 && opcode <= 5) || (opcode >= 20 && opcode <= 25)) {
    return 2;
  }
  if ((opcode >= 10 && opcode <= 19) || opcode == 30 || opcode == 31 || (opcode >= 40 && opcode <= 42)) {
    return 1;
  }
  return opcode == 26 ? 3 : 0;
}

const char* parse_row_code(const int64_t* code, size_t code_length, size_t constant_count, const size_t* sizes,
                           size_t input_count, RowProgram& program, RowCode& result) {
  return Parser(code, code_length, constant_count, program, result).parse(sizes, input_count);
}

}  // namespace kernels
}  // namespace zoexport
