#include "orthogonal.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace zoexport {
namespace kernels {
namespace {

constexpr int kSteps = 5;
constexpr double kFirst = 3.4445, kThird = -4.7750, kFifth = 2.0315;

// A square matrix, row-major.
class Square {
 public:
  explicit Square(size_t size) : size_(size), values_(size * size) {}

  double* row(size_t i) { return values_.data() + i * size_; }
  const double* row(size_t i) const { return values_.data() + i * size_; }

  Square times(const Square& other) const {
    Square product(size_);
    for (size_t i = 0; i < size_; ++i) {
      for (size_t k = 0; k < size_; ++k) {
        const double value = row(i)[k];
        for (size_t j = 0; j < size_; ++j) {
          product.row(i)[j] += value * other.row(k)[j];
        }
      }
    }
    return product;
  }

 private:
  size_t size_;
  std::vector<double> values_;
};

}  // namespace

void orthogonalize(float* m, size_t rows, size_t columns) {
  // Lines along the longer side; a line's elements are `next` apart.
  const size_t size = std::min(rows, columns), lines = std::max(rows, columns);
  const size_t line = rows >= columns ? columns : 1, next = rows >= columns ? 1 : columns;
  Square gram(size), factor(size);
  std::vector<double> values(size);
  for (size_t l = 0; l < lines; ++l) {
    for (size_t i = 0; i < size; ++i) {
      values[i] = static_cast<double>(m[l * line + i * next]);
    }
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j < size; ++j) {
        gram.row(i)[j] += values[i] * values[j];
      }
    }
  }
  double squares = 0;
  for (size_t i = 0; i < size; ++i) {
    squares += gram.row(i)[i];
    factor.row(i)[i] = 1;
  }
  if (squares == 0) {
    return;
  }
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < size; ++j) {
      gram.row(i)[j] /= squares;
    }
  }
  for (int step = 0; step < kSteps; ++step) {
    Square move = gram.times(gram);
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j < size; ++j) {
        move.row(i)[j] = kThird * gram.row(i)[j] + kFifth * move.row(i)[j] + (i == j ? kFirst : 0);
      }
    }
    factor = factor.times(move);
    gram = move.times(gram).times(move);
  }
  const double norm = std::sqrt(squares);
  std::vector<double> sums(size);
  for (size_t l = 0; l < lines; ++l) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (size_t i = 0; i < size; ++i) {
      const double value = static_cast<double>(m[l * line + i * next]) / norm;
      for (size_t j = 0; j < size; ++j) {
        sums[j] += value * factor.row(i)[j];
      }
    }
    for (size_t j = 0; j < size; ++j) {
      m[l * line + j * next] = static_cast<float>(sums[j]);
    }
  }
}

}  // namespace kernels
}  // namespace zoexport
