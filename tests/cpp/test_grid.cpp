// Levels and updates of packed integers in every variant that this processor can run, against docs/noise.md done one number
// at a time.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "check.h"
#include "grid_tables.h"
#include "kernels/grid.h"
#include "kernels/grid_kernels.h"

using namespace zoexport::kernels;
using namespace grid_tables;
using zoexport::rng::Rounding;

namespace {

// Calls body(kernels) with those of each variant that runs here.
template <typename Body>
void for_variants(const Body& body) {
  for (const ProductVariant& variant : product_variants()) {
    if (variant.runs_here) {
      body(*variant.grid);
    }
  }
}

// --- levels ---------------------------------------------------------------------------------------

constexpr int8_t kUntouched = 99;

void levels_of(uint32_t log2_size, int32_t most) {
  const std::vector<int32_t> entries = table_of(log2_size, most);
  const PairTable table{entries.data(), log2_size};
  const Stream stream{(uint64_t{1} << 40) + 5, 0x7FFFFFFFu, 3, 0xFFFFFFFFu};
  struct Run {
    uint64_t start;
    size_t count;
  };
  for (const Run& run : {Run{0, 1}, {0, 600}, {3, 9}, {254, 3}, {1021, 700}, {(uint64_t{1} << 34) - 300, 300}}) {
    for (const bool second : {false, true}) {
      std::vector<int8_t> expected(run.count + 1, kUntouched);
      for (size_t i = 0; i < run.count; ++i) {
        const uint32_t word = word_of(stream.seed, stream.tensor_id, stream.query, stream.step, run.start + i);
        expected[i] = static_cast<int8_t>(level_of(table, word, second));
      }
      for_variants([&](const GridKernels& kernels) {
        std::vector<int8_t> levels(run.count + 1, kUntouched);
        zoexport::rng::levels(stream, run.start, run.count, table, second ? Rounding::kSecond : Rounding::kFirst,
                              levels.data(), kernels.draw);
        CHECK(levels == expected);
      });
    }
  }
}

// Rows of a matrix, whose counters wrap.
void rows_of_levels(uint32_t log2_size) {
  const std::vector<int32_t> entries = table_of(log2_size, 9);
  const PairTable table{entries.data(), log2_size};
  const Stream stream{77, 5, 1, 2};
  zoexport::rng::LevelRows rows{{}, 3, 12};
  for (uint32_t i = 0; i < zoexport::rng::kLevelRows; ++i) {
    rows.first[i] = 0xFFFFFFE0u + 7 * i;
  }
  for_variants([&](const GridKernels& kernels) {
    std::vector<uint32_t> out(12 * zoexport::rng::kLevelRows);
    kernels.draw(stream, rows, table, Rounding::kSecond, out.data());
    bool same = true;
    for (uint32_t b = 0; b < 12; ++b) {
      for (uint32_t i = 0; i < zoexport::rng::kLevelRows; ++i) {
        for (uint32_t e = 0; e < 4; ++e) {
          const uint64_t element = 4 * uint64_t{rows.first[i] + 3 * b} + e;
          const uint32_t word = word_of(stream.seed, stream.tensor_id, stream.query, stream.step, element);
          const int found = static_cast<int8_t>(out[b * zoexport::rng::kLevelRows + i] >> (8 * e));
          same = same && found == level_of(table, word, true);
        }
      }
    }
    CHECK(same);
  });
}

// --- updates --------------------------------------------------------------------------------------

int value_of(Grid grid, const std::vector<uint8_t>& codes, size_t i) {
  return grid == Grid::kInt4 ? (codes[i / 2] >> (4 * (i % 2)) & 15) - 8 : static_cast<int8_t>(codes[i]);
}

// S(v), v at least 0, by the words of a query.
int64_t rounded(float v, uint32_t query, size_t element, const GridUpdate& u) {
  if (v >= 255.0f) {
    return 255;
  }
  const uint32_t r = word_of(u.seed, u.tensor_id + 0x80000000u, query, u.step - 1, element);
  const double part = static_cast<double>(v) - std::floor(static_cast<double>(v));
  return static_cast<int64_t>(v) + (static_cast<double>(r) < std::floor(part * 4294967296.0) ? 1 : 0);
}

int moved(Grid grid, int value, size_t element, const GridUpdate& u) {
  int64_t sum = 0;
  float total = 0.0f;
  for (uint32_t query = 0; query < u.queries; ++query) {
    const int level = level_of(u.table, word_of(u.seed, u.tensor_id, query, u.step - 1, element), u.second);
    const float share = u.learning_rate / static_cast<float>(u.queries);
    const float scaled = share * u.gradients[query];
    const float c = scaled / u.eps;
    if (level == 0 || std::isnan(c)) {
      continue;
    }
    const float bounded = std::min(std::max(c, -255.0f), 255.0f);
    const float move = bounded * static_cast<float>(level);
    total = total + move;
    const int64_t size = rounded(std::fabs(move), query, element, u);
    sum += move < 0.0f ? -size : size;
  }
  if (u.summed) {
    const int64_t size = rounded(std::fabs(total), 0, element, u);
    sum = total < 0.0f ? -size : size;
  }
  const int64_t low = grid == Grid::kInt4 ? -8 : -127, high = grid == Grid::kInt4 ? 7 : 127;
  return static_cast<int>(std::clamp(value - sum, low, high));
}

std::vector<uint8_t> codes_of(Grid grid, size_t n) {
  std::vector<uint8_t> codes(grid == Grid::kInt4 ? n / 2 : n);
  const std::vector<uint32_t> word = random_words(2, codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(grid == Grid::kInt4 ? word[i] : word[i] % 255u - 127u);
  }
  return codes;
}

// The integers begin .. end-1 of n, out of place and in place: the others stay.
void update_of(Grid grid, size_t n, size_t begin, size_t end, const GridUpdate& update) {
  const std::vector<uint8_t> codes = codes_of(grid, n);
  std::vector<int> expected;
  for (size_t i = begin; i < end; ++i) {
    expected.push_back(moved(grid, value_of(grid, codes, i), i, update));
  }
  for_variants([&](const GridKernels& kernels) {
    std::vector<uint8_t> out(codes.size(), 0x33);
    const std::vector<uint8_t> before = out;
    CHECK(grid_update(grid, codes.data(), begin, end, update, out.data(), kernels));
    std::vector<uint8_t> in_place = codes;
    CHECK(grid_update(grid, in_place.data(), begin, end, update, in_place.data(), kernels));
    bool same = true;
    for (size_t i = 0; i < n; ++i) {
      const bool inside = i >= begin && i < end;
      same = same && value_of(grid, out, i) == (inside ? expected[i - begin] : value_of(grid, before, i)) &&
             value_of(grid, in_place, i) == (inside ? expected[i - begin] : value_of(grid, codes, i));
    }
    CHECK(same);
  });
}

void updates(uint32_t log2_size, int32_t most) {
  const std::vector<int32_t> table = table_of(log2_size, most);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> g = {0.7f, -3.5f, 0.0f, 1e30f, -1e-30f, inf, nan, -0.01f};
  for (const Grid grid : {Grid::kInt4, Grid::kInt8}) {
    for (const size_t queries : {size_t{1}, size_t{3}, g.size()}) {
      for (const float learning_rate : {1e-3f, 0.3f}) {
        GridUpdate update{
            g.data(), queries, learning_rate, 0.1f, (uint64_t{1} << 40) + 5, 9, 77, {table.data(), log2_size},
            true,     false};
        update_of(grid, 1024, 0, 1024, update);
        update.summed = true;
        update_of(grid, 1024, 0, 1024, update);
        update_of(grid, 1024, 256, 258, update);
        update.summed = false;
        update_of(grid, 1024, 2, 1018, update);
        update_of(grid, 1024, 256, 258, update);
        update.second = false;
        update.step = 0xFFFFFFFFu;
        update_of(grid, 600, 130, 600, update);
      }
    }
  }
  GridUpdate odd{g.data(), 2, 0.3f, 0.1f, 3, 4, 5, {table.data(), log2_size}, true, false};
  update_of(Grid::kInt8, 333, 0, 333, odd);
  update_of(Grid::kInt8, 333, 332, 333, odd);
  update_of(Grid::kInt8, 333, 10, 10, odd);
}

void nothing_pending() {
  const std::vector<int32_t> table = table_of(3, 1);
  const float none[2] = {0.0f, -0.0f}, one[1] = {1.0f};
  for (const Grid grid : {Grid::kInt4, Grid::kInt8}) {
    std::vector<uint8_t> codes = codes_of(grid, 64);
    codes[3] = 0x80;  // no integer of INT8's grid
    std::vector<uint8_t> out(codes.size(), 1);
    GridUpdate update{none, 2, 1.0f, 0.1f, 3, 0, 5, {table.data(), 3}, true, false};
    CHECK(grid_update(grid, codes.data(), 0, 64, update, out.data()) && out == codes);
    out.assign(codes.size(), 1);
    const std::vector<uint8_t> untouched = out;
    update.gradients = one;
    update.queries = 1;
    CHECK(!grid_update(grid, codes.data(), 0, 64, update, out.data()));
    update.step = 1;
    update.queries = 0;
    CHECK(!grid_update(grid, codes.data(), 0, 64, update, out.data()));
    CHECK(out == untouched);
  }
}

}  // namespace

int main() {
  for (const ProductVariant& variant : product_variants()) {
    std::printf("%s: %s\n", variant.name, variant.runs_here ? "compared" : "does not run here");
  }
  for (uint32_t log2_size = 3; log2_size <= 10; ++log2_size) {
    levels_of(log2_size, 127);
    rows_of_levels(log2_size);
  }
  updates(3, 1);
  updates(6, 7);
  updates(10, 127);
  nothing_pending();
  return check::result();
}
