// Decoding and validation of a row program's code; row_program.h defines the format.
#pragma once

#include "row_program.h"

namespace zoexport {
namespace kernels {

struct RowInstruction {
  RowOp op;
  int64_t dst, a, b, c;
};

struct RowCode {
  std::vector<RowInstruction> instructions;
  std::vector<size_t> outputs;      // registers
  std::vector<bool> is_put_target;  // of each register
};

// Return 1, 2 or 3, or 0 if there is no such opcode. Slices, puts and fills have one: their c is not an operand.
size_t row_operand_count(int64_t opcode);

// Fills the dims, rows, inputs, widths of the registers and outputs, and the greatest width of `program`. Returns
// nullptr, or the rule that the code breaks.
const char* parse_row_code(const int64_t* code, size_t code_length, size_t constant_count, const size_t* sizes,
                           size_t input_count, RowProgram& program, RowCode& result);

}  // namespace kernels
}  // namespace zoexport
