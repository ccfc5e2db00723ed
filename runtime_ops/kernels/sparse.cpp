#include "sparse.h"

#include <algorithm>

#include "half.h"
#include "scratch.h"
#include "sparse_kernels.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kCached = size_t{1} << 17;        // floats of x and y that a block has, where it may have so few rows
constexpr size_t kWorthAThread = size_t{1} << 17;  // floats copied, and entries times rows
constexpr size_t kBand = 64;                       // columns of y that are a tile at a time

// Division of the rows into queries * blocks tasks.
struct Split {
  size_t queries;
  size_t signs;   // copies of a query
  size_t copy;    // rows of a copy
  size_t rows;    // of a copy that a block has, at most
  size_t blocks;  // of a copy
};

Split split_of(const SparseProduct& product, const SparseKernels& kernels) {
  Split split{1, 1, product.rows, 0, 0};
  if (product.epsilon != 0.0f) {
    split = {product.queries, 2, product.rows / (size_t{2} * product.queries), 0, 0};
  }
  const size_t tiles = kCached / std::max<size_t>(1, split.signs * (product.N + product.K) * kernels.rows);
  split.rows = std::max<size_t>(1, tiles) * kernels.rows;
  split.blocks = (split.copy + split.rows - 1) / split.rows;
  return split;
}

// Consecutive entries, as many as noise is made for at once, with their values in the copies of a query.
class Chunk {
 public:
  Chunk(const SparseProduct& product, uint32_t query, rng::NoiseBlocks normal_blocks)
      : product_(product), query_(query), normal_blocks_(normal_blocks) {}

  // The entries from `begin` on, up to the next whole block of noise and kElements of them.
  void fill(size_t begin) {
    begin_ = begin;
    count_ = std::min(product_.end - begin, rng::kElements - begin % 4);
    // In place of a division, for which vectors have no instruction. Exact: (place + 1/2) / K is 1 / (2 K) or more away
    // from the next integer, and rounding moves it by 2^-21 / K at most.
    const double per_place = 1.0 / static_cast<double>(product_.K);
    const int32_t K = static_cast<int32_t>(product_.K);
    const int32_t* places = product_.places + begin;
    for (size_t e = 0; e < count_; ++e) {
      n_[e] = static_cast<int32_t>((places[e] + 0.5) * per_place);
      k_[e] = places[e] - n_[e] * K;
    }
    for (size_t e = 0; e < count_; ++e) {
      values_[0][e] = half_to_float(product_.values[begin + e]);
    }
    if (product_.epsilon == 0.0f) {
      return;
    }
    float z[rng::kElements];
    normal_blocks_(rng::Stream{product_.seed, product_.tensor_id, query_, product_.step},
                   static_cast<uint32_t>(begin / 4), z);
    for (size_t e = 0; e < count_; ++e) {
      const float value = values_[0][e];
      const float move = product_.epsilon * z[begin % 4 + e];
      values_[0][e] = value + move;
      values_[1][e] = value - move;
    }
  }

  size_t end() const { return begin_ + count_; }
  size_t n(size_t entry) const { return static_cast<size_t>(n_[entry - begin_]); }

  // The first entry from `from` on that lies at or after column n.
  size_t column(size_t from, size_t n) const {
    while (from < end() && n_[from - begin_] < static_cast<int32_t>(n)) {
      ++from;
    }
    return from;
  }

  // Entries begin .. end-1 as copy `sign` of the query has them.
  SparseEntries entries(size_t begin, size_t end, size_t sign) const {
    const size_t at = begin - begin_;
    return {end - begin, n_ + at, k_ + at, values_[sign] + at};
  }

 private:
  const SparseProduct& product_;
  const uint32_t query_;
  const rng::NoiseBlocks normal_blocks_;
  size_t begin_ = 0;
  size_t count_ = 0;
  int32_t n_[rng::kElements];
  int32_t k_[rng::kElements];
  float values_[2][rng::kElements];  // of each sign
};

// Rows row(sign) .. row(sign)+count-1 of both copies of a query.
struct Block {
  size_t first;  // of the first copy
  size_t copy;   // to the next one
  size_t signs;
  size_t count;

  size_t row(size_t sign) const { return first + sign * copy; }
};

void run_by_rows(const SparseProduct& product, const Block& block, const SparseKernels& kernels, Chunk& chunk) {
  const size_t N = product.N, K = product.K;
  for (size_t begin = product.begin; begin < product.end; begin = chunk.end()) {
    chunk.fill(begin);
    for (size_t sign = 0; sign < block.signs; ++sign) {
      const size_t row = block.row(sign);
      kernels.add_rows(chunk.entries(begin, chunk.end(), sign), product.x + row * K, block.count, K,
                       product.out + row * N, N);
    }
  }
}

// The count is a multiple of a tile's rows. memory: K + kBand floats for each row of each copy.
void run_in_tiles(const SparseProduct& product, const Block& block, const SparseKernels& kernels, Chunk& chunk,
                  float* memory) {
  const size_t N = product.N, K = product.K, rows = kernels.rows;
  const size_t tiles = block.count / rows;
  float* sums = memory + block.signs * block.count * K;
  // Calls body(sign, first row, tile of x, tile of out).
  const auto for_tiles = [&](const auto& body) {
    for (size_t i = 0; i < block.signs * tiles; ++i) {
      const size_t sign = i / tiles;
      body(sign, block.row(sign) + i % tiles * rows, memory + i * rows * K, sums + i * rows * kBand);
    }
  };
  for_tiles([&](size_t, size_t row, float* x, float*) { kernels.load_tile(product.x + row * K, K, K, x); });
  size_t entry = product.begin;
  if (entry < product.end) {
    chunk.fill(entry);
  }
  while (entry < product.end) {
    const size_t n = chunk.n(entry), width = std::min(kBand, N - n);
    for_tiles([&](size_t, size_t row, float*, float* y) { kernels.load_tile(product.out + row * N + n, N, width, y); });
    bool more = true;  // the band may go on in the next chunk
    while (more) {
      const size_t stop = chunk.column(entry, n + width);
      for_tiles([&](size_t sign, size_t, const float* x, float* y) {
        kernels.add_tile(chunk.entries(entry, stop, sign), x, n, y);
      });
      entry = stop;
      more = entry == chunk.end() && entry < product.end;
      if (more) {
        chunk.fill(entry);
      }
    }
    for_tiles([&](size_t, size_t row, float*, const float* y) {
      kernels.store_tile(y, width, product.out + row * N + n, N);
    });
  }
}

}  // namespace

bool sparse_rows_fit(const SparseProduct& product) {
  return product.queries > 0 && (product.epsilon == 0.0f || product.rows % (size_t{2} * product.queries) == 0);
}

bool sparse_places_fit(const SparseProduct& product) {
  int64_t before = -1;
  for (size_t e = product.begin; e < product.end; ++e) {
    if (product.places[e] <= before) {
      return false;
    }
    before = product.places[e];
  }
  return before < static_cast<int64_t>(product.N * product.K);
}

SparseForm sparse_form(const SparseProduct& product) {
  // Transposing costs as much as what entries in a third of the columns cost more by rows.
  return 3 * (product.end - product.begin) >= product.N + product.K ? SparseForm::kTiles : SparseForm::kRows;
}

Tasks tasks_of(const SparseProduct& product, const SparseKernels& kernels) {
  const Split split = split_of(product, kernels);
  const size_t work = split.rows * split.signs * (product.N + product.K + product.end - product.begin);
  return {split.queries * split.blocks, std::max<size_t>(1, kWorthAThread / std::max<size_t>(1, work))};
}

bool run_tasks(const SparseProduct& product, size_t begin, size_t end, SparseForm form, const SparseKernels& kernels,
               rng::NoiseBlocks normal_blocks) {
  const Split split = split_of(product, kernels);
  float* memory = nullptr;
  if (form == SparseForm::kTiles) {
    static thread_local Scratch scratch;
    memory = scratch.floats(split.signs * std::min(split.rows, split.copy) * (product.K + kBand));
    if (memory == nullptr) {
      return false;
    }
  }
  for (size_t task = begin; task < end; ++task) {
    const size_t query = task / split.blocks, row = task % split.blocks * split.rows;
    Chunk chunk(product, static_cast<uint32_t>(query), normal_blocks);
    const size_t first = query * split.signs * split.copy + row;
    Block block{first, split.copy, split.signs, std::min(split.rows, split.copy - row)};
    for (size_t sign = 0; sign < block.signs; ++sign) {  // at once, which is where the rows come into the cache
      const size_t at = block.row(sign) * product.N;
      std::copy_n(product.y + at, block.count * product.N, product.out + at);
    }
    if (form == SparseForm::kTiles && block.count >= kernels.rows) {
      Block tiled = block;
      tiled.count = block.count / kernels.rows * kernels.rows;
      run_in_tiles(product, tiled, kernels, chunk, memory);
      block.first += tiled.count;
      block.count -= tiled.count;
    }
    if (block.count > 0) {
      run_by_rows(product, block, kernels, chunk);
    }
  }
  return true;
}

}  // namespace kernels
}  // namespace zoexport
