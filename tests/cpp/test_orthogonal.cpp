// Orthogonal factors: what they do to singular values, either side being the longer one.
#include <cmath>
#include <cstdio>
#include <vector>

#include "check.h"
#include "kernel_results.h"
#include "kernels/orthogonal.h"
#include "rng/normal.h"

using zoexport::kernels::orthogonalize;

namespace {

std::vector<float> noise(size_t n) {
  std::vector<float> values(n);
  zoexport::rng::normals(zoexport::rng::Stream{9, 1, 0, 0}, 0, n, values.data());
  return values;
}

std::vector<float> turned(const std::vector<float>& m, size_t rows, size_t columns) {
  std::vector<float> other(m.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      other[j * rows + i] = m[i * columns + j];
    }
  }
  return other;
}

std::vector<float> factor_of(std::vector<float> m, size_t rows, size_t columns) {
  orthogonalize(m.data(), rows, columns);
  return m;
}

// Of a tall matrix: x^T O^T O x lies between 0.6^2 and 1.3^2 of x^T x for any x, so all singular values do.
void singular_values_are_near_one(size_t rows, size_t columns) {
  const std::vector<float> m = noise(rows * columns), found = factor_of(m, rows, columns);
  for (size_t trial = 0; trial < 20; ++trial) {
    std::vector<float> x(columns);
    zoexport::rng::normals(zoexport::rng::Stream{10, static_cast<uint32_t>(trial), 0, 0}, 0, columns, x.data());
    double before = 0, after = 0;
    for (const float value : x) {
      before += std::pow(static_cast<double>(value), 2);
    }
    for (size_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (size_t j = 0; j < columns; ++j) {
        sum += static_cast<double>(found[i * columns + j]) * static_cast<double>(x[j]);
      }
      after += sum * sum;
    }
    CHECK(after > 0.36 * before && after < 1.69 * before);
  }
  CHECK(check::same_bits(factor_of(turned(m, rows, columns), columns, rows), turned(found, rows, columns)));
}

// A vector is divided by its length, as far as five steps go.
void a_vector_keeps_its_direction() {
  const std::vector<float> found = factor_of({3.0f, 0.0f, -4.0f}, 3, 1);
  CHECK(std::fabs(found[0] / found[2] + 0.75f) < 1e-6f && found[1] == 0.0f);
  const double length = std::sqrt(static_cast<double>(found[0]) * static_cast<double>(found[0]) +
                                  static_cast<double>(found[2]) * static_cast<double>(found[2]));
  CHECK(length > 0.6 && length < 1.3);
}

void zeros_and_tiny_numbers() {
  CHECK(check::same_bits(factor_of({0, 0, 0, 0, 0, 0}, 2, 3), {0, 0, 0, 0, 0, 0}));
  // Squares of these are below the least float.
  const std::vector<float> tiny = factor_of({1e-30f, 0, 0, 1e-30f}, 2, 2);
  CHECK(tiny[0] > 0.6f && tiny[0] == tiny[3] && tiny[1] == 0.0f);
}

}  // namespace

int main() {
  for (const size_t columns : {1u, 2u, 3u, 8u, 16u, 33u}) {
    for (const size_t rows : {2u, 5u, 40u, 257u}) {
      if (rows >= 2 * columns) {
        singular_values_are_near_one(rows, columns);
      }
    }
  }
  a_vector_keeps_its_direction();
  zeros_and_tiny_numbers();
  return check::result();
}
