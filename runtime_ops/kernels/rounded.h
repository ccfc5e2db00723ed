// Linear layers over INT4 and INT8 weights whose inputs are rounded to 8 bits, in groups of 32 with a scale each: integers are
// multiplied, four times as many at once as floats, and a group's sum is exact.
//
// y[t, n] is one sum over the groups in ascending order, the bias first: a fused multiply-add of a group's sum and the
// product of both scales. So it depends neither on the other rows, nor on how the work is split; and all variants that
// have a fused multiply-add give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "product_variants.h"
#include "products.h"

namespace zoexport {
namespace kernels {

inline constexpr size_t kRoundedGroup = 32;

// x (rows, K) as integers q in -127 .. 127: x is nearly q * scale. K is a multiple of 32.
struct RoundedRows {
  size_t rows;
  size_t K;
  int8_t* codes;     // (rows, K): of each eight the even ones before the odd ones, as nibbles of a word of weights are
  float* scales;     // (K/32, rows)
  int32_t* offsets;  // (K/32, rows): -8 times the sum of q, since packed weights are codes of q + 8
};

// Floats of memory that hold rounded rows, and the rows in it.
size_t rounded_floats(size_t rows, size_t K);
RoundedRows rounded_in(float* memory, size_t rows, size_t K);

// out = x, rounded: scale is a group's greatest magnitude / 127, q = x * (127 / greatest) to the nearest integer, ties to
// even. Groups below 1e-30 are zero; one with a number that is not finite has the scale NaN.
struct RoundRows {
  const float* x;
  RoundedRows out;
};

// Tasks as in products.h.
Tasks tasks_of(const RoundRows& product);
bool run_tasks(const RoundRows& product, size_t begin, size_t end);

// y (T, N) = x (T, K) W^T (+ bias).
struct RoundedLinear {
  RoundedRows x;
  Int4Matrix weight;  // valid, of the same K; of INT8 its N and K alone
  const float* bias;  // N floats, or null
  float* y;
  Int8Matrix bytes{};  // without codes where the weight is INT4
};

RoundedLinear rounded_linear(const Int8Matrix& weight, const float* bias, float* y);

// The kernels of an instruction set. Constant data: no code that only some processors can run is called to make it.
struct RoundedKernels {
  size_t lanes;  // columns that are multiplied at once
  size_t few_rows;
  size_t panel_rows;
  // y of rows first .. first+count-1, at most few_rows, and of columns column .. column+lanes-1, as far as there are: codes
  // are unpacked in registers.
  void (*multiply_few)(const RoundedLinear& product, size_t first, size_t count, size_t column);
  // The same of at most panel_rows, with what `fill` unpacked of these columns: so many floats for each group. Of
  // `count_panels`, at most `panels`, which lie one after another, as their columns do.
  size_t panels;
  size_t panel_floats;
  void (*fill)(const Int4Matrix& weight, size_t column, float* panel);
  void (*multiply)(const RoundedLinear& product, size_t first, size_t count, size_t column, const float* panel,
                   size_t count_panels);
  // The same for INT8 weights.
  void (*fill_bytes)(const Int8Matrix& weight, size_t column, float* panel);
  void (*multiply_bytes)(const RoundedLinear& product, size_t first, size_t count, size_t column, const float* panel,
                         size_t count_panels);
};

// One file each, named by the instruction set; which of them exist depends on the architecture.
extern const RoundedKernels rounded_amx;
extern const RoundedKernels rounded_vnni;
extern const RoundedKernels rounded_avx2;
extern const RoundedKernels rounded_i8mm;
extern const RoundedKernels rounded_dotprod;
extern const RoundedKernels rounded_neon;
extern const RoundedKernels rounded_portable;

// Tasks as in products.h; the thread keeps its panels' memory, 36 bytes per lane and group, for its next products.
Tasks tasks_of(const RoundedLinear& product, const RoundedKernels& kernels = *fastest_products().rounded);
bool run_tasks(const RoundedLinear& product, size_t begin, size_t end,
               const RoundedKernels& kernels = *fastest_products().rounded);

// Layers of the same x: the tasks of all of them, one layer's after another's.
struct RoundedLinears {
  const RoundedLinear* layers;
  size_t count;
};

Tasks tasks_of(const RoundedLinears& product, const RoundedKernels& kernels = *fastest_products().rounded);
bool run_tasks(const RoundedLinears& product, size_t begin, size_t end,
               const RoundedKernels& kernels = *fastest_products().rounded);

}  // namespace kernels
}  // namespace zoexport
