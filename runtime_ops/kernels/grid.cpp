#include "grid.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rng/philox.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kLevels = 129; // |Q| of a signed byte
constexpr float kMostMoved = 255.0f;

struct Limits {
  int32_t low;
  int32_t high;
};

Limits limits_of(Grid grid) {
  return grid == Grid::kInt4 ? Limits{-8, 7} : Limits{-127, 127};
}

// S(c k) of every k, for one query: base[k], and one more where the rounding word is below threshold[k].
struct Moves {
  bool negative; // c
  bool any;
  uint32_t base[kLevels];
  uint32_t threshold[kLevels];

  explicit Moves(float c) : negative(std::signbit(c)), any(false), base{}, threshold{} {
    for (size_t k = 1; k < kLevels; ++k) {
      const float v = std::fabs(c) * static_cast<float>(k);
      if (v >= kMostMoved) {
        base[k] = static_cast<uint32_t>(kMostMoved);
      } else if (v > 0.0f) { // and no NaN, which moves nothing
        const float whole = std::floor(v);
        base[k] = static_cast<uint32_t>(whole);
        threshold[k] = static_cast<uint32_t>((v - whole) * 0x1p32f);
      }
      any = any || (base[k] | threshold[k]) != 0;
    }
  }
};

// The integers begin .. begin + count - 1.
void read(Grid grid, const uint8_t* codes, size_t begin, size_t count, int32_t* out) {
  for (size_t i = 0; i < count; ++i) {
    const size_t at = begin + i;
    out[i] = grid == Grid::kInt4 ? ((codes[at / 2] >> (4 * (at % 2))) & 15) - 8 : static_cast<int8_t>(codes[at]);
  }
}

void write(Grid grid, const int32_t* values, size_t begin, size_t count, uint8_t* out) {
  if (grid == Grid::kInt8) {
    std::transform(values, values + count, out + begin, [](int32_t w) { return static_cast<uint8_t>(w); });
    return;
  }
  for (size_t i = 0; i + 1 < count; i += 2) {
    out[(begin + i) / 2] = static_cast<uint8_t>((values[i] + 8) | (values[i + 1] + 8) << 4);
  }
}

// Adds S(c Q) of one query to the sums of the elements begin .. begin + count - 1.
void add_moves(
    const GridUpdate& update,
    const Moves& moves,
    uint32_t query,
    size_t begin,
    size_t count,
    int32_t* sums) {
  const PairTable& table = update.table;
  const uint32_t step = update.step - 1;
  uint32_t word[rng::kElements];
  rng::words(rng::Stream{update.seed, update.tensor_id, query, step}, begin, count, word);
  int32_t levels[rng::kElements];
  int32_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t* entry = table.entries + 2 * (word[i] >> (32 - table.log2_size));
    const bool own = word[i] << table.log2_size < static_cast<uint32_t>(entry[0]);
    const uint32_t byte = (own ? 0u : 2u) + (update.second ? 1u : 0u);
    levels[i] = static_cast<int8_t>(static_cast<uint32_t>(entry[1]) >> (8 * byte));
    found |= levels[i];
  }
  if (found == 0) {
    return;
  }
  rng::words(rng::Stream{update.seed, update.tensor_id | rng::kRounding, query, step}, begin, count, word);
  for (size_t i = 0; i < count; ++i) {
    const size_t k = static_cast<size_t>(std::abs(levels[i]));
    const int32_t moved = static_cast<int32_t>(moves.base[k] + (word[i] < moves.threshold[k] ? 1u : 0u));
    sums[i] += (levels[i] < 0) == moves.negative ? moved : -moved;
  }
}

} // namespace

bool grid_update(Grid grid, const uint8_t* codes, size_t begin, size_t end, const GridUpdate& update, uint8_t* out) {
  const float* g = update.gradients;
  if (update.queries == 0) {
    return false;
  }
  if (std::all_of(g, g + update.queries, [](float one) { return one == 0.0f; })) {
    const size_t per_byte = grid == Grid::kInt4 ? 2 : 1;
    std::memmove(out + begin / per_byte, codes + begin / per_byte, (end - begin) / per_byte);
    return true;
  }
  if (update.step == 0) {
    return false;
  }
  const float rate = update.lr / static_cast<float>(update.queries);
  std::vector<Moves> moves;
  for (size_t query = 0; query < update.queries; ++query) {
    moves.emplace_back((rate * g[query]) / update.eps);
  }
  const Limits limits = limits_of(grid);
  while (begin < end) {
    const size_t count = std::min(end - begin, rng::kElements - begin % 4); // up to a whole block of words
    int32_t values[rng::kElements];
    int32_t sums[rng::kElements] = {};
    for (size_t query = 0; query < update.queries; ++query) {
      if (moves[query].any) {
        add_moves(update, moves[query], static_cast<uint32_t>(query), begin, count, sums);
      }
    }
    read(grid, codes, begin, count, values);
    for (size_t i = 0; i < count; ++i) {
      values[i] = std::clamp(values[i] - sums[i], limits.low, limits.high);
    }
    write(grid, values, begin, count, out);
    begin += count;
  }
  return true;
}

} // namespace kernels
} // namespace zoexport
