// Row programs: a chain of elementwise operations, reductions over a row, slices and puts, run row by row so that what
// lies between inputs and outputs never leaves the cache. A program runs once for each row of an iteration space.
//
// The code, int64 numbers:
//   rank, d_0 .. d_{rank-1}                                       rank 1..5; n = the product of the dims
//   inputs, then for each: width, offset, stride_0 .. stride_{rank-1}
//   registers, then for each: width                               register i < inputs is input i, which is read only
//   outputs, then for each: register
//   instructions to the end, five numbers each: opcode, dst, a, b, c
// Row (i_0 .. i_{rank-1}) of an input is the `width` elements from offset + sum_k i_k * stride_k of its tensor: a
// stride of 0 broadcasts. An output is (n, width of its register), dense. An operand below 0 is a number,
// constants[-1 - operand].
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zoexport {
namespace kernels {

constexpr size_t kRowMaxRank = 5;
constexpr size_t kRowMaxRegisters = 256;
constexpr size_t kRowMaxInstructions = 1024;

// Elementwise operations broadcast operands of width 1; the width of dst is the greatest of its operands'. They follow
// IEEE 754; max and min give NaN if an operand is NaN, like torch.
enum class RowOp : int64_t {
  kAdd = 0,
  kSub = 1,
  kMul = 2,
  kDiv = 3,
  kMax = 4,
  kMin = 5,
  kNeg = 10,
  kExp = 11,  // results below the least normal float are 0
  kLog = 12,
  kSqrt = 13,
  kRsqrt = 14,
  kReciprocal = 15,
  kSigmoid = 16,
  kTanh = 17,
  kErf = 18,
  kAbs = 19,
  kLt = 20,  // comparisons give 1 or 0
  kLe = 21,
  kGt = 22,
  kGe = 23,
  kEq = 24,
  kNe = 25,
  kSelect = 26,  // a != 0 ? b : c
  kSum = 30,     // of a row of register a; dst has width 1
  kRowMax = 31,
  kSlice = 40,  // dst = a[c : c + width(dst)]
  kPut = 41,    // dst[c : c + width(a)] = a
  kFill = 42,   // dst[:] = a, a constant or a register of width 1
};

// A validated program, laid out. Made by parse_row_program; its fields are for run_row_program.
struct RowProgram {
  enum class Home : uint8_t { kInput, kOutput, kScratch };
  // Location of a register's rows: element `shift` of row r of its home is at home + shift + r * pitch.
  struct Register {
    size_t width = 0;
    Home home = Home::kScratch;
    size_t index = 0;  // the number of the input or output, or the place in scratch
    size_t shift = 0;
    size_t pitch = 0;
  };
  struct Input {
    size_t offset = 0;
    size_t strides[kRowMaxRank] = {};
  };
  // One loop: dst[dst_shift + i] = op(a[a_shift + i], b[i], c[i]); slices, puts and fills are copies.
  struct Step {
    RowOp op;
    size_t width;  // of the loop
    int32_t dst, a, b, c;
    size_t dst_shift, a_shift;
  };
  // An output that is another register's rows again.
  struct Copy {
    size_t from, output;
  };

  size_t rank = 0;  // after dims that are one run in memory were joined
  size_t dims[kRowMaxRank] = {};
  size_t rows = 0;
  std::vector<Input> inputs;
  std::vector<Register> registers;
  std::vector<size_t> outputs;  // their widths
  std::vector<Step> steps;
  std::vector<Copy> copies;
  std::vector<float> constants;

  size_t wide = 0;  // the greatest width
  // Work is dealt in pieces: a row, or `chunk` columns of one where rows are wide and no column needs another.
  size_t chunk = 0;
  size_t pieces = 0;
  size_t block_rows = 0;  // rows that run together
  size_t scratch = 0;     // floats of scratch
};

// Check a code against its tensors (input i has sizes[i] elements) and lay the program out. Return nullptr, or the rule
// that the code breaks; `program` must not be used then.
const char* parse_row_program(const int64_t* code, size_t code_length, const double* constants, size_t constant_count,
                              const size_t* sizes, size_t input_count, RowProgram& program);

// Runs pieces begin .. end-1 of program.pieces. inputs[i]: the tensor of input i; outputs[k]: (rows, outputs[k]) dense,
// which overlap nothing. Ranges of pieces may run on different threads; the bits depend neither on them nor on the
// instruction set. Returns false, with nothing written, where memory for scratch is missing.
bool run_row_program(const RowProgram& program, const float* const* inputs, float* const* outputs, size_t begin,
                     size_t end);

}  // namespace kernels
}  // namespace zoexport
