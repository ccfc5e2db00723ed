// Trained integers with NEON. See vector_grid.h.
#include "kernels/neon/vectors.h"
#include "kernels/vector_grid.h"
#include "rng/neon/vectors.h"

namespace zoexport {
namespace kernels {

constexpr GridKernels grid_neon = vector_grid_kernels<Neon, rng::Neon>();

}  // namespace kernels
}  // namespace zoexport
