#include "scaling.h"

#include "each_width.h"

namespace zoexport {
namespace kernels {

ZO_EACH_WIDTH void scale(float* values, float factor, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    values[i] *= factor;
  }
}

ZO_EACH_WIDTH void write_scaled(const float* values, float factor, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = values[i] * factor;
  }
}

}  // namespace kernels
}  // namespace zoexport
