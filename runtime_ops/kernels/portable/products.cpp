// Products in the vectors that GCC and clang provide on every processor. See vector_products.h.
#include "kernels/portable/vectors.h"
#include "kernels/vector_products.h"

namespace zoexport {
namespace kernels {

constexpr ProductKernels products_portable = vector_kernels<Portable>();

}  // namespace kernels
}  // namespace zoexport
