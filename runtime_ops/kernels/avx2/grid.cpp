// Trained integers with AVX2. Compiled with -mavx2 -mfma; see vector_grid.h.
#include "kernels/avx2/vectors.h"
#include "kernels/vector_grid.h"
#include "rng/avx2/vectors.h"

namespace zoexport {
namespace kernels {

constexpr GridKernels grid_avx2 = vector_grid_kernels<Avx2, rng::Avx2>();

}  // namespace kernels
}  // namespace zoexport
