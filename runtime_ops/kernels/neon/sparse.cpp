// Sparse products with NEON. See vector_sparse.h.
#include "kernels/neon/vectors.h"
#include "kernels/vector_sparse.h"

namespace zoexport {
namespace kernels {

constexpr SparseKernels sparse_neon = vector_sparse_kernels<Neon>();

}  // namespace kernels
}  // namespace zoexport
