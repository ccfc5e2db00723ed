// Trained integers with AVX-512. Compiled with -mavx512f; see vector_grid.h.
#include "kernels/avx512/vectors.h"
#include "kernels/vector_grid.h"
#include "rng/avx512/vectors.h"

namespace zoexport {
namespace kernels {

constexpr GridKernels grid_avx512 = vector_grid_kernels<Avx512, rng::Avx512>();

}  // namespace kernels
}  // namespace zoexport
