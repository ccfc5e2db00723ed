// Sparse products in the vectors that GCC and clang provide on every processor. See vector_sparse.h.
#include "kernels/portable/vectors.h"
#include "kernels/vector_sparse.h"

namespace zoexport {
namespace kernels {

constexpr SparseKernels sparse_portable = vector_sparse_kernels<Portable>();

}  // namespace kernels
}  // namespace zoexport
