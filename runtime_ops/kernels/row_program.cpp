#include "row_program.h"

#include <algorithm>
#include <array>
#include <memory>
#include <new>

#include "row_code.h"
#include "row_loops.h"

namespace zoexport {
namespace kernels {
namespace {

// Elements of a register that are worked on together, so that a program's registers stay in the first level of cache.
constexpr size_t kBlockElements = 1024;
constexpr size_t kLineFloats = 16;  // of the cache
// Between registers in scratch, in floats: 4096 bytes apart they would share one set of the cache.
constexpr size_t kPadding = 5 * kLineFloats;
constexpr size_t kMaxScratch = size_t{1} << 24;
constexpr size_t kNone = SIZE_MAX;

// Joins dims that every input steps through as through one, and drops those of size 1: rows run together along the
// last.
void join_dims(RowProgram& p) {
  size_t rank = 0;
  for (size_t d = 0; d < p.rank; ++d) {
    if (p.dims[d] == 1) {
      continue;
    }
    bool joins = rank > 0;
    for (const RowProgram::Input& input : p.inputs) {
      joins = joins && input.strides[rank - 1] == input.strides[d] * p.dims[d];
    }
    rank += joins ? 0 : 1;
    p.dims[rank - 1] = joins ? p.dims[rank - 1] * p.dims[d] : p.dims[d];
    for (RowProgram::Input& input : p.inputs) {
      input.strides[rank - 1] = input.strides[d];
    }
  }
  if (rank == 0) {
    rank = 1;
    p.dims[0] = 1;
  }
  p.rank = rank;
}

using Home = RowProgram::Home;
using Register = RowProgram::Register;

// Decides where each register lies, and turns instructions into loops.
class Layout {
 public:
  Layout(RowProgram& program, const RowCode& code)
      : p_(program), code_(code), root_(program.registers.size()), last_use_(program.registers.size(), kNone) {}

  const char* lay_out() {
    choose_pieces();
    place_inputs_and_outputs();
    for (const RowInstruction& in : code_.instructions) {
      add_step(in);
    }
    for (size_t i = 0; i < p_.steps.size(); ++i) {
      for_each_register(p_.steps[i], [&](size_t reg) { last_use_[root_[reg]] = i; });
    }
    place_scratch();
    for (size_t r = 0; r < p_.registers.size(); ++r) {
      if (root_[r] != r) {
        const Register& root = p_.registers[root_[r]];
        Register& view = p_.registers[r];
        view.home = root.home;
        view.index = root.index;
        view.pitch = root.pitch;
        view.shift += root.shift;
      }
    }
    return p_.scratch <= kMaxScratch ? nullptr : "code: rows must be narrower, or registers fewer";
  }

 private:
  size_t run_width(size_t width) const { return width == p_.wide ? p_.chunk : width; }

  template <typename Body>
  void for_each_register(const RowProgram::Step& step, const Body& body) const {
    const int32_t operands[] = {step.a, step.b, step.c};
    for (size_t k = 0; k < row_operand_count(static_cast<int64_t>(step.op)); ++k) {
      if (operands[k] >= 0) {
        body(static_cast<size_t>(operands[k]));
      }
    }
    body(static_cast<size_t>(step.dst));
  }

  void choose_pieces() {
    bool pointwise = true;  // no column needs another
    for (const RowInstruction& in : code_.instructions) {
      pointwise = pointwise && (static_cast<int64_t>(in.op) < 30 || in.op == RowOp::kFill);
    }
    for (const Register& reg : p_.registers) {
      pointwise = pointwise && (reg.width == 1 || reg.width == p_.wide);
    }
    p_.chunk = pointwise ? std::min(p_.wide, kBlockElements) : p_.wide;
    p_.pieces = p_.rows * ((p_.wide + p_.chunk - 1) / p_.chunk);
    // A few rows even where they are longer than a block should be: steps of width 1 cost as much for one as for four.
    const size_t few = std::min<size_t>(4, 4 * kBlockElements / p_.wide);
    p_.block_rows = std::max({size_t{1}, few, kBlockElements / p_.wide});
  }

  void place_inputs_and_outputs() {
    for (size_t r = 0; r < p_.registers.size(); ++r) {
      root_[r] = r;
    }
    for (size_t i = 0; i < p_.inputs.size(); ++i) {
      p_.registers[i].home = Home::kInput;
      p_.registers[i].index = i;
      p_.registers[i].pitch = p_.inputs[i].strides[p_.rank - 1];
    }
    for (size_t k = 0; k < code_.outputs.size(); ++k) {
      Register& reg = p_.registers[code_.outputs[k]];
      if (reg.home == Home::kScratch) {
        reg.home = Home::kOutput;
        reg.index = k;
        reg.pitch = reg.width;
      } else {
        p_.copies.push_back({code_.outputs[k], k});
      }
    }
  }

  void add_step(const RowInstruction& in) {
    const size_t dst = static_cast<size_t>(in.dst);
    Register& target = p_.registers[dst];
    // A slice is a view, unless what it reads may change or it is wanted elsewhere.
    if (in.op == RowOp::kSlice && target.home == Home::kScratch && !code_.is_put_target[dst] &&
        !code_.is_put_target[root_[static_cast<size_t>(in.a)]]) {
      root_[dst] = root_[static_cast<size_t>(in.a)];
      target.shift = p_.registers[static_cast<size_t>(in.a)].shift + static_cast<size_t>(in.c);
      return;
    }
    RowProgram::Step step{};
    step.op = in.op;
    step.dst = static_cast<int32_t>(in.dst);
    step.a = static_cast<int32_t>(in.a);
    step.b = static_cast<int32_t>(in.b);
    step.c = static_cast<int32_t>(in.c);
    step.width = target.width;
    if (in.op == RowOp::kSum || in.op == RowOp::kRowMax || in.op == RowOp::kPut) {
      step.width = p_.registers[static_cast<size_t>(in.a)].width;
    }
    step.dst_shift = in.op == RowOp::kPut ? static_cast<size_t>(in.c) : 0;
    step.a_shift = in.op == RowOp::kSlice ? static_cast<size_t>(in.c) : 0;
    p_.steps.push_back(step);
  }

  // Registers of one width share a place where no step needs both.
  void place_scratch() {
    struct Place {
      size_t width, index;
      bool free;
    };
    std::vector<Place> places;
    std::vector<size_t> place_of(p_.registers.size(), kNone);
    for (size_t i = 0; i < p_.steps.size(); ++i) {
      const size_t root = root_[static_cast<size_t>(p_.steps[i].dst)];
      Register& reg = p_.registers[root];
      if (reg.home == Home::kScratch && place_of[root] == kNone) {
        const size_t width = run_width(reg.width);
        size_t place = 0;
        while (place < places.size() && !(places[place].free && places[place].width == width)) {
          ++place;
        }
        if (place == places.size()) {
          places.push_back({width, p_.scratch, true});
          p_.scratch += (width * p_.block_rows + kLineFloats - 1) / kLineFloats * kLineFloats + kPadding;
        }
        places[place].free = false;
        place_of[root] = place;
        reg.index = places[place].index;
        reg.pitch = width;
      }
      for_each_register(p_.steps[i], [&](size_t used) {
        const size_t done = root_[used];
        if (place_of[done] != kNone && last_use_[done] == i) {
          places[place_of[done]].free = true;
        }
      });
    }
  }

  RowProgram& p_;
  const RowCode& code_;
  std::vector<size_t> root_;      // the register whose rows a view shows, or the register itself
  std::vector<size_t> last_use_;  // the last step that needs a root
};

// Runs blocks of rows; place_block sets the locations of the registers in a block.
class Run {
 public:
  Run(const RowProgram& program, const float* const* inputs, float* const* outputs, float* scratch)
      : p_(program), inputs_(inputs), outputs_(outputs), scratch_(scratch) {}

  // Rows row .. row + rows - 1, one after the other along the last dim, from `column`, at most p_.chunk of the widest.
  void block(size_t row, size_t rows, size_t column) {
    column_ = column;
    place(row);
    for (const RowProgram::Step& step : p_.steps) {
      RowLoop loop{};
      const Register& dst = p_.registers[static_cast<size_t>(step.dst)];
      loop.dst = const_cast<float*>(data_[static_cast<size_t>(step.dst)]) + step.dst_shift;
      loop.dst_pitch = dst.pitch;
      loop.rows = rows;
      loop.width = run_width(step.width);
      const size_t count = row_operand_count(static_cast<int64_t>(step.op));
      loop.a = operand(step.a, step.a_shift, step.op);
      if (count > 1) {
        loop.b = operand(step.b, 0, step.op);
      }
      if (count > 2) {
        loop.c = operand(step.c, 0, step.op);
      }
      run_row_loop(step.op, loop);
    }
    for (const RowProgram::Copy& copy : p_.copies) {
      RowLoop loop{};
      const size_t width = p_.outputs[copy.output];
      loop.dst = outputs_[copy.output] + row * width + (width == p_.wide ? column : 0);
      loop.dst_pitch = width;
      loop.rows = rows;
      loop.width = run_width(width);
      loop.a = operand(static_cast<int32_t>(copy.from), 0, RowOp::kSlice);
      run_row_loop(RowOp::kSlice, loop);
    }
  }

 private:
  size_t run_width(size_t width) const { return width == p_.wide ? std::min(p_.chunk, width - column_) : width; }

  void place(size_t row) {
    size_t index[kRowMaxRank];
    size_t left = row;
    for (size_t d = p_.rank - 1; d > 0; --d) {
      index[d] = left % p_.dims[d];
      left /= p_.dims[d];
    }
    index[0] = left;
    for (size_t r = 0; r < p_.registers.size(); ++r) {
      const Register& reg = p_.registers[r];
      const size_t column = reg.width == p_.wide ? column_ : 0;
      switch (reg.home) {
        case Home::kInput:
          data_[r] = inputs_[reg.index] + first_of(p_.inputs[reg.index], index) + reg.shift + column;
          break;
        case Home::kOutput:
          data_[r] = outputs_[reg.index] + row * reg.pitch + reg.shift + column;
          break;
        case Home::kScratch:
          data_[r] = scratch_ + reg.index + reg.shift;
          break;
      }
    }
  }

  size_t first_of(const RowProgram::Input& input, const size_t* index) const {
    size_t at = input.offset;
    for (size_t d = 0; d < p_.rank; ++d) {
      at += index[d] * input.strides[d];
    }
    return at;
  }

  // A reduction reads its row though it has width 1.
  RowOperand operand(int32_t value, size_t shift, RowOp op) const {
    if (value < 0) {
      return {&p_.constants[static_cast<size_t>(-1 - value)], 0, true};
    }
    const Register& reg = p_.registers[static_cast<size_t>(value)];
    const bool whole = op == RowOp::kSum || op == RowOp::kRowMax || op == RowOp::kSlice || op == RowOp::kPut;
    return {data_[static_cast<size_t>(value)] + shift, reg.pitch, !whole && reg.width == 1};
  }

  const RowProgram& p_;
  const float* const* inputs_;
  float* const* outputs_;
  float* scratch_;
  size_t column_ = 0;
  std::array<const float*, kRowMaxRegisters> data_;
};

}  // namespace

const char* parse_row_program(const int64_t* code, size_t code_length, const double* constants, size_t constant_count,
                              const size_t* sizes, size_t input_count, RowProgram& program) {
  program = RowProgram();
  RowCode parsed;
  if (const char* broken = parse_row_code(code, code_length, constant_count, sizes, input_count, program, parsed)) {
    return broken;
  }
  program.constants.assign(constants, constants + constant_count);
  join_dims(program);
  return Layout(program, parsed).lay_out();
}

bool run_row_program(const RowProgram& program, const float* const* inputs, float* const* outputs, size_t begin,
                     size_t end) {
  const std::unique_ptr<float[]> memory(new (std::nothrow) float[program.scratch + kLineFloats]);
  if (memory == nullptr) {
    return false;
  }
  // Registers of the widest instruction set are as wide as a line of the cache, and slow where they cross one.
  void* scratch = memory.get();
  size_t room = sizeof(float) * (program.scratch + kLineFloats);
  std::align(sizeof(float) * kLineFloats, sizeof(float) * program.scratch, scratch, room);
  Run run(program, inputs, outputs, static_cast<float*>(scratch));
  const size_t chunks = program.pieces / program.rows;
  const size_t last_dim = program.dims[program.rank - 1];
  while (begin < end) {
    const size_t row = begin / chunks;
    if (chunks > 1) {
      run.block(row, 1, begin % chunks * program.chunk);
      ++begin;
      continue;
    }
    const size_t rows = std::min({program.block_rows, end - row, last_dim - row % last_dim});
    run.block(row, rows, 0);
    begin += rows;
  }
  return true;
}

}  // namespace kernels
}  // namespace zoexport
