// Updates of packed integers against docs/quzo.md done one number at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "kernels/grid.h"
#include "rng/philox.h"

using namespace zoexport::kernels;
using zoexport::rng::Stream;
using zoexport::rng::words;

namespace {

std::vector<uint32_t> random_words(uint32_t id, size_t n) {
  std::vector<uint32_t> word(n);
  words(Stream{99, id, 0, 0}, 0, n, word.data());
  return word;
}

// Any table: thresholds of all sizes, levels up to `most`.
std::vector<int32_t> table_of(uint32_t log2_size, int32_t most) {
  const size_t size = size_t{1} << log2_size;
  const std::vector<uint32_t> word = random_words(1, 5 * size);
  std::vector<int32_t> table;
  for (size_t i = 0; i < size; ++i) {
    table.push_back(static_cast<int32_t>(word[5 * i]));
    uint32_t bytes = 0;
    for (size_t j = 0; j < 4; ++j) {
      const int32_t level = static_cast<int32_t>(word[5 * i + 1 + j] % static_cast<uint32_t>(2 * most + 1)) - most;
      bytes |= (static_cast<uint32_t>(level) & 255u) << (8 * j);
    }
    table.push_back(static_cast<int32_t>(bytes));
  }
  return table;
}

// One word of a stream, by its own block.
uint32_t word_of(uint64_t seed, uint32_t id, uint32_t query, uint32_t step, uint64_t element) {
  uint32_t c[4] = {static_cast<uint32_t>(element / 4), id, query, step};
  zoexport::rng::philox_block(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), c);
  return c[element % 4];
}

int level_of(const PairTable& table, uint32_t word, bool second) {
  const uint32_t i = word >> (32 - table.log2_size), r = word << table.log2_size;
  int8_t pairs[4];
  for (uint32_t j = 0; j < 4; ++j) {
    pairs[j] = static_cast<int8_t>(static_cast<uint32_t>(table.entries[2 * i + 1]) >> (8 * j) & 255u);
  }
  const bool own = r < static_cast<uint32_t>(table.entries[2 * i]);
  return own ? pairs[second ? 1 : 0] : pairs[second ? 3 : 2];
}

int value_of(Grid grid, const std::vector<uint8_t>& codes, size_t i) {
  return grid == Grid::kInt4 ? (codes[i / 2] >> (4 * (i % 2)) & 15) - 8 : static_cast<int8_t>(codes[i]);
}

int moved(Grid grid, int value, size_t element, const GridUpdate& u) {
  int64_t sum = 0;
  for (uint32_t query = 0; query < u.queries; ++query) {
    const int level = level_of(u.table, word_of(u.seed, u.tensor_id, query, u.step - 1, element), u.second);
    const float share = u.lr / static_cast<float>(u.queries);
    const float scaled = share * u.gradients[query];
    const float c = scaled / u.eps;
    const float v = std::fabs(c) * static_cast<float>(std::abs(level));
    int64_t size = 0;
    if (v >= 255.0f) {
      size = 255;
    } else if (level != 0 && !std::isnan(c)) {
      const uint32_t r = word_of(u.seed, u.tensor_id + 0x80000000u, query, u.step - 1, element);
      const double part = static_cast<double>(v) - std::floor(static_cast<double>(v));
      size = static_cast<int64_t>(v) + (static_cast<double>(r) < std::floor(part * 4294967296.0) ? 1 : 0);
    }
    sum += (c < 0.0f) != (level < 0) ? -size : size;
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
  std::vector<uint8_t> out(codes.size(), 0x33);
  const std::vector<uint8_t> before = out;
  CHECK(grid_update(grid, codes.data(), begin, end, update, out.data()));
  bool same = true;
  for (size_t i = 0; i < n; ++i) {
    const bool inside = i >= begin && i < end;
    const int expected = inside ? moved(grid, value_of(grid, codes, i), i, update) : value_of(grid, before, i);
    same = same && value_of(grid, out, i) == expected;
  }
  CHECK(same);
  std::vector<uint8_t> in_place = codes;
  CHECK(grid_update(grid, in_place.data(), begin, end, update, in_place.data()));
  bool inside_same = true;
  for (size_t i = begin; i < end; ++i) {
    inside_same = inside_same && value_of(grid, in_place, i) == value_of(grid, out, i);
  }
  CHECK(inside_same);
}

void updates(uint32_t log2_size, int32_t most) {
  const std::vector<int32_t> table = table_of(log2_size, most);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> g = {0.7f, -3.5f, 0.0f, 1e30f, -1e-30f, inf, nan, -0.01f};
  for (const Grid grid : {Grid::kInt4, Grid::kInt8}) {
    for (const size_t queries : {size_t{1}, size_t{3}, g.size()}) {
      for (const float lr : {1e-3f, 0.3f}) {
        GridUpdate update{g.data(), queries, lr, 0.1f, (uint64_t{1} << 40) + 5, 9, 77, {table.data(), log2_size}, true};
        update_of(grid, 1024, 0, 1024, update);
        update_of(grid, 1024, 2, 1018, update);
        update_of(grid, 1024, 256, 258, update);
        update.second = false;
        update.step = 0xFFFFFFFFu;
        update_of(grid, 600, 130, 600, update);
      }
    }
  }
  GridUpdate odd{g.data(), 2, 0.3f, 0.1f, 3, 4, 5, {table.data(), log2_size}, true};
  update_of(Grid::kInt8, 333, 0, 333, odd);
  update_of(Grid::kInt8, 333, 332, 333, odd);
  update_of(Grid::kInt8, 333, 10, 10, odd);
}

void nothing_pending() {
  const std::vector<int32_t> table = table_of(3, 1);
  const float none[2] = {0.0f, -0.0f}, one[1] = {1.0f};
  for (const Grid grid : {Grid::kInt4, Grid::kInt8}) {
    std::vector<uint8_t> codes = codes_of(grid, 64);
    codes[3] = 0x80; // no integer of INT8's grid
    std::vector<uint8_t> out(codes.size(), 1);
    GridUpdate update{none, 2, 1.0f, 0.1f, 3, 0, 5, {table.data(), 3}, true};
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

} // namespace

int main() {
  updates(3, 1);
  updates(6, 7);
  updates(10, 127);
  nothing_pending();
  return check::result();
}
