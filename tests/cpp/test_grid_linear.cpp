// Perturbed products in every variant that this processor can run: the bits of `linear` over the integers that
// docs/noise.md states for each copy, however the tasks are dealt.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "grid_tables.h"
#include "kernel_results.h"
#include "kernels/grid.h"

using namespace zoexport::kernels;
using namespace grid_tables;
using check::noise;
using check::same_bits;

namespace {

// A matrix of integers, of group size 0 where it is INT8.
struct Weight {
  size_t N, K, group;
  std::vector<int> values;
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  std::vector<float> row_scales;

  Weight(size_t rows, size_t width, size_t group_size) : N(rows), K(width), group(group_size) {
    const std::vector<uint32_t> word = random_words(7, N * K + N);
    for (size_t i = 0; i < N * K; ++i) {
      values.push_back(static_cast<int>(group != 0 ? word[i] % 16u : word[i] % 255u) - (group != 0 ? 8 : 127));
    }
    for (size_t i = 0; group != 0 && i < N * K / group; ++i) {
      scales.push_back(static_cast<uint16_t>(0x3C00u + word[i] % 256u));
    }
    for (size_t n = 0; n < N; ++n) {
      row_scales.push_back(1e-3f + static_cast<float>(word[N * K + n]) * 0x1p-40f);
    }
    pack();
  }

  void pack() {
    codes.assign(group != 0 ? N * K / 2 : N * K, 0);
    for (size_t i = 0; i < N * K; ++i) {
      if (group != 0) {
        codes[i / 2] = static_cast<uint8_t>(codes[i / 2] | (values[i] + 8) << (4 * (i % 2)));
      } else {
        codes[i] = static_cast<uint8_t>(values[i]);
      }
    }
    codes.shrink_to_fit();
  }

  std::variant<Int4Matrix, Int8Matrix> matrix() const {
    if (group != 0) {
      return Int4Matrix{codes.data(), scales.data(), N, K, group};
    }
    return Int8Matrix{reinterpret_cast<const int8_t*>(codes.data()), row_scales.data(), N, K};
  }
};

// As copy `copy` has it.
Weight perturbed(Weight weight, const GridLinear& p, uint32_t copy) {
  const int low = weight.group != 0 ? -8 : -127, high = weight.group != 0 ? 7 : 127;
  for (size_t i = 0; i < weight.values.size(); ++i) {
    const int level = level_of(p.table, word_of(p.seed, p.tensor_id, copy / 2, p.step, i), false);
    weight.values[i] = std::clamp(weight.values[i] + (copy % 2 == 0 ? level : -level), low, high);
  }
  weight.pack();
  return weight;
}

// A variant's kernels; where it has tiles, those of one without, which perturbed products do not use.
const ProductKernels& without_tiles(const ProductVariant& variant) {
  const std::vector<ProductVariant>& all = product_variants();
  return variant.kernels->tiled == nullptr ? *variant.kernels
                                           : *std::find_if(all.begin(), all.end(), [](const ProductVariant& other) {
                                                return other.runs_here && other.kernels->tiled == nullptr;
                                              })->kernels;
}

std::vector<float> expected_of(const GridLinear& p, const Weight& weight, const ProductVariant& variant) {
  const ProductKernels& kernels = without_tiles(variant);
  const size_t copy = p.rows / (2 * p.queries);
  std::vector<float> y(p.rows * weight.N);
  for (uint32_t i = 0; i < 2 * p.queries; ++i) {
    const Weight own = perturbed(weight, p, i);
    std::visit(
        [&](const auto& matrix) {
          const Product product =
              linear(p.x + i * copy * weight.K, copy, matrix, p.bias, y.data() + i * copy * weight.N);
          CHECK(run_tasks(product, 0, tasks_of(product, kernels).count, kernels));
        },
        own.matrix());
  }
  return y;
}

std::vector<float> result_of(GridLinear product, size_t N, const ProductVariant& variant, size_t step) {
  return check::guarded(product.rows * N, [&](float* y) {
    product.y = y;
    check::in_steps(tasks_of(product, variant).count, step,
                    [&](size_t begin, size_t end) { return run_tasks(product, begin, end, variant); });
  });
}

void all_variants(size_t copy, uint32_t queries, size_t N, size_t K, size_t group, uint32_t log2_size, int32_t most) {
  const Weight weight(N, K, group);
  const size_t rows = 2 * queries * copy;
  const std::vector<float> x = noise(1, rows * K), bias = noise(2, N);
  const std::vector<int32_t> table = table_of(log2_size, most);
  GridLinear product{x.data(),    rows, weight.matrix(), nullptr, {table.data(), log2_size}, uint64_t{3} << 40,
                     0xFFFFFFFEu, 12,   queries,         nullptr};
  CHECK(grid_rows_fit(product));
  for (const float* added : {static_cast<const float*>(nullptr), bias.data()}) {
    product.bias = added;
    std::vector<float> fused;
    for (const ProductVariant& variant : product_variants()) {
      if (!variant.runs_here) {
        continue;
      }
      const std::vector<float> whole = result_of(product, N, variant, SIZE_MAX / 2);
      CHECK(same_bits(whole, expected_of(product, weight, variant)));
      CHECK(same_bits(whole, result_of(product, N, variant, 1)));
      CHECK(same_bits(whole, result_of(product, N, variant, 3)));
      if (variant.name != std::string("portable")) {
        CHECK(fused.empty() || same_bits(whole, fused));
        fused = whole;
      }
    }
  }
}

void rows_that_do_not_fit() {
  const Weight weight(3, 32, 32);
  const std::vector<float> x(12 * 32);
  const std::vector<int32_t> table = table_of(3, 1);
  GridLinear product{x.data(), 12, weight.matrix(), nullptr, {table.data(), 3}, 1, 2, 3, 3, nullptr};
  CHECK(grid_rows_fit(product));
  product.queries = 4;
  CHECK(!grid_rows_fit(product));
  product.queries = 0;
  CHECK(!grid_rows_fit(product));
  product.queries = 2;
  product.rows = 0;
  CHECK(grid_rows_fit(product) && tasks_of(product).count == 0);
}

}  // namespace

int main() {
  for (const ProductVariant& variant : product_variants()) {
    std::printf("%s: %s%s\n", variant.name, variant.runs_here ? "compared" : "does not run here",
                &variant == &fastest_products() ? ", chosen" : "");
  }
  for (const size_t N : {1u, 4u, 15u, 16u, 17u, 33u, 70u}) {
    all_variants(3, 2, N, 64, 32, 3, 1);
    all_variants(5, 1, N, 96, 96, 6, 20);
    all_variants(2, 3, N, 50, 0, 5, 3);  // INT8; rows begin within blocks of noise
    all_variants(1, 1, N, 7, 0, 4, 127);
    all_variants(4, 2, N, 36, 0, 10, 127);
  }
  all_variants(1, 4, 40, 576, 32, 3, 1);  // one row, blocks of the depth
  all_variants(21, 1, 40, 800, 32, 3, 1);
  all_variants(21, 1, 40, 801, 0, 3, 1);
  all_variants(96, 1, 40, 1184, 32, 4, 2);  // the depth is not kept
  all_variants(145, 1, 34, 416, 32, 3, 1);  // noise is drawn twice
  all_variants(300, 1, 33, 64, 0, 3, 1);
  rows_that_do_not_fit();
  return check::result();
}
