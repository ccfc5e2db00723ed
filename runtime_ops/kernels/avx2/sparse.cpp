// Sparse products with AVX2. Compiled with -mavx2 -mfma; see vector_sparse.h.
#include "kernels/avx2/vectors.h"
#include "kernels/vector_sparse.h"

namespace zoexport {
namespace kernels {

constexpr SparseKernels sparse_avx2 = vector_sparse_kernels<Avx2>();

}  // namespace kernels
}  // namespace zoexport
