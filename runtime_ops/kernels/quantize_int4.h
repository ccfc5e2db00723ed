// Quantizes a matrix to the packing int4-symmetric-g<G>/1 (docs/formats.md, "Quantizing"), to the bits of
// zoexport.core.int4, whose formulas these are: every operation is one of float32, rounded once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {

// weight: (groups, group_size) dense; group_size is a multiple of 32. codes: (groups, group_size / 2). scales: (groups),
// bfloat16 bits. Weights are finite. Groups depend on no others and may be quantized on several threads.
void quantize_int4(const float* weight, size_t groups, size_t group_size, uint8_t* codes, uint16_t* scales);

}  // namespace kernels
}  // namespace zoexport
