// Products with AVX-512. Compiled with -mavx512f; see vector_products.h.
#include "kernels/avx512/vectors.h"
#include "kernels/vector_products.h"

namespace zoexport {
namespace kernels {

constexpr ProductKernels products_avx512 = vector_kernels<Avx512>();

}  // namespace kernels
}  // namespace zoexport
