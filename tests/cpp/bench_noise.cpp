// Prints the nanoseconds that one normal costs, alone and in the kernels, of which `adam` draws those of ten steps; and one
// level by tables of 2^t entries, with each variant that runs here. The least of many runs, as others may use the machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "grid_tables.h"
#include "kernels/grid_kernels.h"
#include "kernels/zeroth_order.h"
#include "rng/variants.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kElements = 9216;  // a slot of SmolLM2-135M: 576 x 16
constexpr uint32_t kQueries = 4;
constexpr size_t kHorizon = 10;
constexpr int kRuns = 200;
constexpr uint32_t kTables[] = {3, 6, 10};

template <typename Work>
double least_nanoseconds(Work work) {
  double least = 1e30;
  for (int run = 0; run < kRuns; ++run) {
    const Clock::time_point begin = Clock::now();
    work(static_cast<uint32_t>(run + 1));
    least = std::min(least, std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  return least;
}

}  // namespace

int main() {
  using namespace zoexport;
  const std::vector<float> master(kElements, 0.5f);
  const std::vector<float> gradients(kQueries, 0.25f);
  std::vector<float> out(2 * kQueries * kElements);
  std::vector<kernels::MomentStep> steps;
  for (uint32_t step = 0; step < kHorizon; ++step) {
    steps.push_back({gradients.data(), step, 0.1f, 0.1f});
  }
  std::printf("%-8s %8s %8s %8s %8s   ns a normal\n", "variant", "normals", "update", "adam", "perturb");
  for (const rng::Variant& variant : rng::variants()) {
    if (!variant.runs_here) {
      std::printf("%-8s does not run here\n", variant.name);
      continue;
    }
    const rng::NoiseBlocks make = variant.normal_blocks;
    const double alone =
        least_nanoseconds([&](uint32_t step) { rng::normals({7, 1, 0, step}, 0, kElements, out.data(), make); });
    const double update = least_nanoseconds([&](uint32_t step) {
      kernels::zo_update(master.data(), kElements, gradients.data(), kQueries, 0.1f, 7, step, 1, out.data(), make);
    });
    const double adam = least_nanoseconds([&](uint32_t) {
      kernels::zo_update_moments(master.data(), kElements, {steps.data(), kHorizon, kQueries, 0.1f, true, 7}, 1,
                                 out.data(), make);
    });
    const double perturb = least_nanoseconds([&](uint32_t step) {
      kernels::zo_perturb(master.data(), kElements, 1e-3f, 7, step, 1, kQueries, out.data(), make);
    });
    std::printf("%-8s %8.2f %8.2f %8.2f %8.2f%s\n", variant.name, alone / kElements, update / (kElements * kQueries),
                adam / (kElements * kQueries * kHorizon), perturb / (kElements * kQueries),
                &variant == &rng::fastest() ? "   chosen" : "");
  }
  std::printf("\n%-8s", "variant");
  for (const uint32_t log2_size : kTables) {
    std::printf("   t = %2u", log2_size);
  }
  std::printf("   ns a level\n");
  std::vector<int8_t> levels(kElements);
  for (const kernels::ProductVariant& variant : kernels::product_variants()) {
    if (!variant.runs_here) {
      continue;
    }
    std::printf("%-8s", variant.name);
    for (const uint32_t log2_size : kTables) {
      const std::vector<int32_t> entries = grid_tables::table_of(log2_size, 9);
      const rng::PairTable table{entries.data(), log2_size};
      const double time = least_nanoseconds([&](uint32_t step) {
        rng::levels({7, 1, 0, step}, 0, kElements, table, rng::Rounding::kFirst, levels.data(), variant.grid->draw);
      });
      std::printf(" %8.2f", time / kElements);
    }
    std::printf("\n");
  }
  return 0;
}
