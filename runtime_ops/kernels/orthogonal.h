// The orthogonal factor of a matrix, as Muon has it: all its singular values near 1.
#pragma once

#include <cstddef>

namespace zoexport {
namespace kernels {

// m (rows, columns), replaced by nearly U V^T of its singular value decomposition U S V^T: five steps of the Newton-Schulz
// iteration X <- 3.4445 X - 4.775 X X^T X + 2.0315 X (X^T X)^2 from m over its Frobenius norm (Jordan et al., "Muon", 2024).
// Singular values above a thousandth of the norm come to lie between 0.6 and 1.3. Zeros stay zeros.
//
// Each step is a product with a symmetric matrix of the shorter side alone, so m is read twice: for its Gram matrix, and
// for the result. Computed in double in one order, and rounded once: the same bits on every machine.
void orthogonalize(float* m, size_t rows, size_t columns);

}  // namespace kernels
}  // namespace zoexport
