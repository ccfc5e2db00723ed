// Products with NEON. See vector_products.h.
#include "kernels/neon/vectors.h"
#include "kernels/vector_products.h"

namespace zoexport {
namespace kernels {

constexpr ProductKernels products_neon = vector_kernels<Neon>();

}  // namespace kernels
}  // namespace zoexport
