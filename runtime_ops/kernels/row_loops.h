// The loops of row programs: one operation over several rows.
#pragma once

#include <cstddef>

#include "row_program.h"

namespace zoexport {
namespace kernels {

// Row r is at data + r * pitch: `width` floats, or the one that all of the row uses.
struct RowOperand {
  const float* data;
  size_t pitch;
  bool one;
};

// dst row r, at dst + r * dst_pitch, overlaps no operand. A reduction writes one float a row, all else `width`.
struct RowLoop {
  float* dst;
  size_t dst_pitch;
  RowOperand a, b, c;  // those that the operation does not have are ignored
  size_t rows;
  size_t width;
};

// Run `loop` and change it; do not use it afterwards.
void run_row_loop(RowOp op, RowLoop& loop);

}  // namespace kernels
}  // namespace zoexport
