// Prints what perturbed products cost one thread beside plain ones of the same rows, what drawing costs, and what an
// update costs. The best of many runs, as others may use the machine. A name as the first argument runs that variant
// alone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "grid_tables.h"
#include "kernels/grid.h"
#include "kernels/grid_kernels.h"

namespace {

using namespace zoexport::kernels;
namespace rng = zoexport::rng;
using Clock = std::chrono::steady_clock;

constexpr double kSeconds = 0.25;  // for each number

template <typename Body>
double seconds(const Body& body) {
  double least = 1e30;
  const Clock::time_point start = Clock::now();
  do {
    const Clock::time_point begin = Clock::now();
    body();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  } while (std::chrono::duration<double>(Clock::now() - start).count() < kSeconds);
  return least;
}

void products(const ProductVariant& variant, size_t N, size_t K, uint32_t queries, size_t copy) {
  const size_t rows = 2 * queries * copy;
  const std::vector<uint8_t> codes(N * K / 2, 0x5A);
  const std::vector<uint16_t> scales(N * K / 32, 0x3C00);
  const std::vector<float> x(rows * K, 0.5f);
  const std::vector<int32_t> table = grid_tables::table_of(3, 1);
  std::vector<float> y(rows * N);
  const Int4Matrix weight{codes.data(), scales.data(), N, K, 32};
  const Product plain = linear(x.data(), rows, weight, nullptr, y.data());
  const GridLinear grid{x.data(), rows, weight, nullptr, {table.data(), 3}, 7, 3, 5, queries, y.data()};
  std::vector<uint32_t> drawn(K / 4 * rng::kLevelRows);
  const size_t tasks = tasks_of(plain, *variant.kernels).count;
  const double plain_time = seconds([&] { run_tasks(plain, 0, tasks, *variant.kernels); });
  const double grid_time = seconds([&] { run_tasks(grid, 0, tasks_of(grid, variant).count, variant); });
  // Once for each query; a product draws again for every 140 rows of a copy.
  const double noise_time = seconds([&] {
    for (uint32_t query = 0; query < queries; ++query) {
      for (uint32_t n = 0; n < N; n += rng::kLevelRows) {
        const rng::LevelRows some{{n}, 1, K / 4};
        variant.grid->draw({7, 5, query, 3}, some, grid.table, rng::Rounding::kFirst, drawn.data());
      }
    }
  });
  std::printf(
      "%-8s %5zu x %4zu, %2u copies of %3zu rows, ms: plain %7.3f, perturbed %7.3f, one drawing %6.3f (%2.0f %%)\n",
      variant.name, N, K, 2 * queries, copy, 1e3 * plain_time, 1e3 * grid_time, 1e3 * noise_time,
      100 * noise_time / grid_time);
}

void updates(const ProductVariant& variant, Grid grid, uint32_t queries) {
  constexpr size_t kElements = 576 * 576;
  std::vector<uint8_t> codes(kElements, 0x5A);
  const std::vector<int32_t> table = grid_tables::table_of(3, 1);
  const std::vector<float> g(queries, 0.5f);
  const GridUpdate update{g.data(), queries, 1e-3f, 0.1f, 7, 3, 5, {table.data(), 3}, true, false};
  uint8_t* data = codes.data();
  const double time = seconds([&] { grid_update(grid, data, 0, kElements, update, data, *variant.grid); });
  std::printf("%-8s update of %s, %u queries: %.2f ns an integer and query\n", variant.name,
              grid == Grid::kInt4 ? "INT4" : "INT8", queries, 1e9 * time / kElements / queries);
}

}  // namespace

int main(int count, char** arguments) {
  for (const ProductVariant& variant : product_variants()) {
    if (!variant.runs_here || (count > 1 && std::strcmp(arguments[1], variant.name) != 0)) {
      continue;
    }
    for (const size_t N : {576u, 1536u}) {
      products(variant, N, 576, 1, 64);
      products(variant, N, 576, 4, 256);
    }
    for (const Grid grid : {Grid::kInt4, Grid::kInt8}) {
      updates(variant, grid, 1);
      updates(variant, grid, 4);
    }
  }
  return 0;
}
