// Products with AVX2 and FMA. Compiled with -mavx2 -mfma; see vector_products.h.
#include "kernels/avx2/vectors.h"
#include "kernels/vector_products.h"

namespace zoexport {
namespace kernels {

constexpr ProductKernels products_avx2 = vector_kernels<Avx2>();

}  // namespace kernels
}  // namespace zoexport
