// Trained integers in the vectors that GCC and clang provide on every processor. See vector_grid.h.
#include "kernels/portable/vectors.h"
#include "kernels/vector_grid.h"
#include "rng/portable/vectors.h"

namespace zoexport {
namespace kernels {

constexpr GridKernels grid_portable = vector_grid_kernels<Portable, rng::Portable>();

}  // namespace kernels
}  // namespace zoexport
