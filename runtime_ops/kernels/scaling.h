// Numbers that lie one after the other times a factor.
#pragma once

#include <cstddef>

namespace zoexport {
namespace kernels {

void scale(float* values, float factor, size_t count);
void write_scaled(const float* values, float factor, size_t count, float* out);

}  // namespace kernels
}  // namespace zoexport
