// Every variant of the products that this processor can run, against sums in double precision and against the scalar
// reference of int4.h; those of numbers rounded to bfloat16 against sums of rounded ones. Results do not depend on how
// tasks are dealt, nor on the other rows; variants with a fused multiply-add give the same bits, and tiles are as near
// to the sums.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "kernel_results.h"
#include "kernels/product_variants.h"
#include "kernels/products.h"
#include "rng/normal.h"

using namespace zoexport::kernels;
using check::noise;
using zoexport::rng::Stream;
using zoexport::rng::words;

namespace {

// The nearest bfloat16, in double precision: 8 bits.
double as_bf16(double value) {
  int exponent;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(fraction * 256.0) / 256.0, exponent);
}

// What B is, as numbers; B[p, j] at values[p * columns + j].
struct Expected {
  std::vector<double> sums;   // (batches, rows, columns)
  std::vector<double> sizes;  // the same of absolute values
};

Expected expected_of(const Product& product, const std::vector<float>& b) {
  Expected expected;
  for (size_t batch = 0; batch < product.batches; ++batch) {
    const float* a = product.a.values + batch * product.a_batch;
    for (size_t r = 0; r < product.rows; ++r) {
      for (size_t j = 0; j < product.columns; ++j) {
        const size_t at = (batch * product.rows + r) * product.columns + j;
        double sum = product.before != nullptr ? static_cast<double>(product.before[at])
                     : product.bias != nullptr ? static_cast<double>(product.bias[j])
                                               : 0.0;
        double size = std::abs(sum);
        for (size_t p = 0; p < product.depth; ++p) {
          const float left = product.a_transposed ? a[p * product.a.stride + r] : a[r * product.a.stride + p];
          const float right = b[(batch * product.depth + p) * product.columns + j];
          const double term = product.bf16 ? as_bf16(static_cast<double>(left)) * as_bf16(static_cast<double>(right))
                                           : static_cast<double>(left) * static_cast<double>(right);
          sum += term;
          size += std::abs(term);
        }
        expected.sums.push_back(sum);
        expected.sizes.push_back(size);
      }
    }
  }
  return expected;
}

std::vector<float> result_of(Product product, const ProductKernels& kernels, size_t step) {
  return check::guarded(product.batches * product.rows * product.columns, [&](float* c) {
    product.c = c;
    check::in_steps(tasks_of(product, kernels).count, step,
                    [&](size_t begin, size_t end) { return run_tasks(product, begin, end, kernels); });
  });
}

// The greatest error of an element, as a share of the sizes of what it adds up.
double error_of(const std::vector<float>& result, const Expected& expected) {
  double most = 0.0;
  for (size_t i = 0; i < result.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(result[i]) - expected.sums[i]) / (expected.sizes[i] + 1e-24));
  }
  return most;
}

// Rows that a variant multiplies as it does more rows: of fewer an INT4 weight has kernels of its own, which give the
// same bits where there are no tiles.
size_t least_rows(const Product& product, const ProductKernels& kernels) {
  return kernels.tiled != nullptr && !product.bf16 && product.rows > kernels.few_rows ? kernels.few_rows + 1 : 1;
}

// `b` is what product.b stands for, (batches, depth, columns).
void all_variants(const Product& product, const std::vector<float>& b) {
  const Expected expected = expected_of(product, b);
  std::vector<float> fused;
  for (const ProductVariant& variant : product_variants()) {
    if (!variant.runs_here) {
      continue;
    }
    const std::vector<float> whole = result_of(product, *variant.kernels, SIZE_MAX / 2);
    CHECK(error_of(whole, expected) <= 5e-7);
    CHECK(check::same_bits(whole, result_of(product, *variant.kernels, 1)));
    CHECK(check::same_bits(whole, result_of(product, *variant.kernels, 5)));
    const bool tiled = (product.bf16 ? variant.kernels->bf16 : variant.kernels->tiled) != nullptr;
    if (variant.name != std::string("portable") && !tiled) {
      CHECK(fused.empty() || check::same_bits(whole, fused));
      fused = whole;
    }
    if (product.batches == 1 && product.rows > 1 && !product.a_transposed) {
      Product last = product;
      last.rows = least_rows(product, *variant.kernels);
      const size_t first = product.rows - last.rows, size = last.rows * product.columns;
      last.a.values += first * product.a.stride;
      last.before = product.before == nullptr ? nullptr : product.before + first * product.columns;
      const std::vector<float> alone = result_of(last, *variant.kernels, SIZE_MAX / 2);
      CHECK(check::same_bits(alone, {whole.end() - static_cast<ptrdiff_t>(size), whole.end()}));
    }
  }
}

// A product of a quantized weight as it is, and of numbers that are rounded to bfloat16.
void both(Product product, const std::vector<float>& b) {
  all_variants(product, b);
  product.bf16 = true;
  all_variants(product, b);
}

void int4_products(size_t T, size_t N, size_t K, size_t G) {
  // Exactly as many bytes as there are, so that a tool that looks for reads past the end finds them.
  std::vector<uint32_t> word(N * K / 2 + N * K / G);
  words(Stream{5, 0, 0, 0}, 0, word.size(), word.data());
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  for (size_t i = 0; i < word.size(); ++i) {
    if (i < N * K / 2) {
      codes.push_back(static_cast<uint8_t>(word[i] >> 24));
    } else {
      scales.push_back(static_cast<uint16_t>(0x3C00u + (word[i] >> 24)));
    }
  }
  codes.shrink_to_fit();
  scales.shrink_to_fit();
  const Int4Matrix weight{codes.data(), scales.data(), N, K, G};
  std::vector<float> w(N * K), turned(N * K);
  for (size_t n = 0; n < N; ++n) {
    int4_dequantize_row(weight, n, &w[n * K]);
    for (size_t k = 0; k < K; ++k) {
      turned[k * N + n] = w[n * K + k];
    }
  }
  const std::vector<float> x = noise(1, T * K), dy = noise(2, T * N), bias = noise(3, N);
  both(linear(x.data(), T, weight, nullptr, nullptr), turned);
  both(linear(x.data(), T, weight, bias.data(), nullptr), turned);
  both(linear_input_gradient(dy.data(), T, weight, nullptr), w);

  std::vector<float> reference(T * N);
  CHECK(linear_int4(x.data(), T, weight, bias.data(), reference.data()));
  for (const ProductVariant& variant : product_variants()) {
    if (variant.runs_here) {
      const std::vector<float> y =
          result_of(linear(x.data(), T, weight, bias.data(), nullptr), *variant.kernels, SIZE_MAX / 2);
      double error = 0.0, norm = 0.0;
      for (size_t i = 0; i < y.size(); ++i) {
        error += std::pow(static_cast<double>(y[i]) - static_cast<double>(reference[i]), 2);
        norm += std::pow(static_cast<double>(reference[i]), 2);
      }
      CHECK(std::sqrt(error) <= 1e-6 * std::sqrt(norm));
    }
  }
}

void int8_products(size_t T, size_t N, size_t K) {
  std::vector<uint32_t> word(N * K);
  words(Stream{6, 0, 0, 0}, 0, word.size(), word.data());
  std::vector<int8_t> codes(N * K);
  std::vector<float> scales = noise(4, N), w(N * K), turned(N * K);
  for (size_t n = 0; n < N; ++n) {
    for (size_t k = 0; k < K; ++k) {
      const size_t i = n * K + k;
      codes[i] = static_cast<int8_t>(static_cast<int>(word[i] >> 24) - 128);
      w[i] = turned[k * N + n] = static_cast<float>(codes[i]) * scales[n];
    }
  }
  const Int8Matrix weight{codes.data(), scales.data(), N, K};
  const std::vector<float> x = noise(1, T * K), dy = noise(2, T * N), bias = noise(3, N);
  both(linear(x.data(), T, weight, bias.data(), nullptr), turned);
  both(linear_input_gradient(dy.data(), T, weight, nullptr), w);
}

void float_products(size_t batches, size_t rows, size_t columns, size_t depth) {
  const std::vector<float> a = noise(1, batches * rows * depth), b = noise(2, batches * depth * columns);
  const std::vector<float> before = noise(7, batches * rows * columns);
  std::vector<float> turned(b.size());
  for (size_t batch = 0; batch < batches; ++batch) {
    for (size_t p = 0; p < depth; ++p) {
      for (size_t j = 0; j < columns; ++j) {
        turned[(batch * columns + j) * depth + p] = b[(batch * depth + p) * columns + j];
      }
    }
  }
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      const float* right = b_transposed ? turned.data() : b.data();
      Product product = matmul(a.data(), right, batches, rows, columns, depth, a_transposed, b_transposed, nullptr);
      all_variants(product, b);
      product.before = before.data();
      all_variants(product, b);
    }
  }
}

void the_choice_runs() {
  const std::vector<ProductVariant>& all = product_variants();
  CHECK(all.back().name == std::string("portable") && all.back().runs_here);
  CHECK(fastest_products().runs_here && &fastest_kernels() == fastest_products().kernels);
  for (const ProductVariant& variant : all) {
    if (&variant == &fastest_products()) {
      break;
    }
    CHECK(!variant.runs_here);
  }
#if defined(__aarch64__)
  CHECK(std::string(fastest_products().name).rfind("neon", 0) == 0);
#endif
}

void blocks_of_the_depth() {
  for (const size_t depth : {0u, 1u, 31u, 32u, 384u, 385u, 576u, 1536u, 49152u}) {
    const size_t block = block_depth(depth);
    CHECK(block % 32 == 0 && block >= 32 && block <= 384);
    CHECK(depth > 384 || block >= depth);
  }
  CHECK(block_depth(576) == 288);
}

}  // namespace

int main() {
  the_choice_runs();
  blocks_of_the_depth();
  for (const ProductVariant& variant : product_variants()) {
    std::printf("%s: %s%s\n", variant.name, variant.runs_here ? "compared" : "does not run here",
                &variant == &fastest_products() ? ", chosen" : "");
  }
  for (const size_t T : {0u, 1u, 2u, 5u, 6u, 7u, 8u, 9u, 13u, 14u, 15u, 28u, 29u}) {
    for (const size_t N : {1u, 4u, 8u, 15u, 16u, 17u, 31u, 32u, 33u}) {
      int4_products(T, N, 64, 32);
    }
    int4_products(T, 70, 96, 96);
    int8_products(T, 33, 50);
  }
  for (const size_t N : {1u, 7u, 16u, 31u, 100u, 400u}) {
    int4_products(3, N, 448, 64);
    int8_products(3, N, 415);
    int8_products(2, N, 3);
  }
  // Few rows: groups that blocks of the depth cut, and rows of more and of fewer scales than are read together.
  for (const size_t T : {1u, 2u, 3u, 4u}) {
    int4_products(T, 70, 960, 480);
    int4_products(T, 33, 832, 64);
    int4_products(T, 129, 1280, 32);
    int4_products(T, 65, 1536, 256);
    int4_products(T, 3, 576, 32);
  }
  // More than a tile of rows, than two, and than are packed at once.
  for (const size_t T : {31u, 33u, 48u, 255u, 257u}) {
    int4_products(T, 47, 416, 32);
    int8_products(T, 47, 403);
  }
  int4_products(300, 40, 128, 32);
  int4_products(57, 385, 800, 32);
  int4_products(20, 1000, 64, 64);
  // More rows times depth than are packed at once.
  int4_products(300, 33, 800, 32);
  int4_products(150, 900, 64, 32);
  for (const size_t rows : {1u, 2u, 14u, 17u, 60u}) {
    for (const size_t columns : {1u, 3u, 8u, 16u, 33u}) {
      for (const size_t depth : {0u, 1u, 5u, 64u, 390u}) {
        float_products(1, rows, columns, depth);
      }
    }
  }
  for (const size_t rows : {8u, 9u, 33u, 256u, 270u}) {  // wide and deep enough for tiles
    for (const size_t columns : {64u, 81u}) {
      for (const size_t depth : {64u, 67u, 391u}) {
        float_products(1, rows, columns, depth);
      }
    }
  }
  float_products(1, 290, 40, 500);
  float_products(1, 300, 16, 100);
  float_products(1, 16, 300, 100);
  float_products(3, 64, 20, 33);
  float_products(2, 130, 70, 64);
  float_products(0, 4, 4, 4);
  return check::result();
}
