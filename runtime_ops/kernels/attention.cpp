#include "attention.h"

#include <algorithm>
#include <limits>

#include "each_width.h"
#include "packed_rows.h"
#include "product_variants.h"
#include "row_math.h"
#include "scaling.h"
#include "scratch.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kQueries = 128;    // of a tile of the result, at most
constexpr size_t kFewTokens = 256;  // rows of fewer are tiles of half as many, so that there is work for threads
constexpr size_t kKeys = 128;       // that it meets at a time
// Queries and keys of a tile of the gradient: what it packs is to stay in the second cache, and short rows are to be tiles
// enough for several threads.
constexpr size_t kMostOfTile = 128, kLeastOfTile = 32, kTilesOfRow = 4;
constexpr size_t kTileFloats = size_t{1} << 14;
constexpr size_t kWorthAThread = size_t{1} << 18;  // multiply-adds
constexpr size_t kLine = 16;                       // floats of a cache line

size_t round_up(size_t count, size_t multiple) { return divide_up(count, multiple) * multiple; }

// In an order that no instruction set changes.
ZO_EACH_WIDTH float dot(const float* a, const float* b, size_t count) {
  float sums[kLine] = {};
  size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    for (size_t lane = 0; lane < kLine; ++lane) {
      sums[lane] += a[i + lane] * b[i + lane];
    }
  }
  for (size_t lane = 0; i + lane < count; ++lane) {
    sums[lane] += a[i + lane] * b[i + lane];
  }
  for (size_t half = kLine / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) {
      sums[lane] += sums[lane + half];
    }
  }
  return sums[0];
}

Seen seen_of(const Attention& a) { return {a.causal, static_cast<int32_t>(a.window)}; }

// Return whether no query sees any of the keys; both are ranges of positions in a row.
bool is_hidden(const Attention& a, size_t first_query, size_t last_query, size_t first_key, size_t last_key) {
  return a.causal && (first_key > last_query || (a.window > 0 && last_key + a.window <= first_query));
}

// Keys among begin .. end-1 that a range of queries may see; no query of the range sees the others.
struct Range {
  size_t begin;
  size_t end;
};
Range seen_keys(const Attention& a, size_t first_query, size_t last_query, size_t begin, size_t end) {
  if (!a.causal) {
    return {begin, end};
  }
  const size_t nearest = a.window > 0 && first_query + 1 > a.window ? first_query + 1 - a.window : 0;
  const size_t last = std::max(begin, std::min(end, last_query + 1));
  return {std::min(last, std::max(begin, nearest)), last};
}

// Return the queries among begin .. end-1 that may see a range of keys.
Range seeing_queries(const Attention& a, size_t first_key, size_t last_key, size_t begin, size_t end) {
  if (!a.causal) {
    return {begin, end};
  }
  const size_t last = a.window > 0 ? std::max(begin, std::min(end, last_key + a.window)) : end;
  return {std::min(last, std::max(begin, first_key)), last};
}

// One head of an array (batches, tokens, heads, width): its rows.
struct HeadRows {
  HeadRows(const float* values, size_t batch, size_t tokens, size_t heads, size_t head, size_t width)
      : values(values + (batch * tokens * heads + head) * width), stride(heads * width) {}
  const float* row(size_t token) const { return values + token * stride; }
  FloatMatrix matrix() const { return {values, stride}; }
  const float* values;
  size_t stride;
};

// Blocks of rows that are as high as a kernel's tile, or nearly.
class Blocks {
 public:
  Blocks(size_t count, size_t most) : count_(count), blocks_(divide_up(count, most)) {}
  size_t count() const { return blocks_; }
  size_t begin(size_t block) const { return block * count_ / blocks_; }
  size_t size(size_t block) const { return begin(block + 1) - begin(block); }

 private:
  size_t count_;
  size_t blocks_;
};

// Memory for arrays one after the other, each at the beginning of a cache line.
class Arrays {
 public:
  explicit Arrays(float* memory) : next_(memory) {}
  float* take(size_t count) {
    float* taken = next_;
    next_ += round_up(count, kLine);
    return taken;
  }
  static size_t size(std::initializer_list<size_t> counts) {
    size_t total = 0;
    for (const size_t count : counts) {
      total += round_up(count, kLine);
    }
    return total;
  }

 private:
  float* next_;
};

// Rows first .. first+count-1 as tiles read them, block by block.
void pack(const ProductKernels& kernels, const HeadRows& rows, size_t first, const Blocks& blocks, size_t depth,
          float* packed) {
  for (size_t block = 0; block < blocks.count(); ++block) {
    const size_t r = blocks.begin(block);
    kernels.pack_rows(rows.row(first + r), rows.stride, blocks.size(block), depth, packed + r * depth);
  }
}

// Panels of rows first .. first+count-1 as columns; that of column j is at panels + j * depth.
void fill_columns(const ProductKernels& kernels, const HeadRows& rows, size_t first, size_t count, size_t depth,
                  float* panels) {
  for (size_t j = 0; j < count; j += kernels.width) {
    const size_t some = std::min(kernels.width, count - j);
    kernels.fill_float_transposed(rows.matrix(), {0, depth, first + j, some, round_up(some, kernels.lanes)},
                                  panels + j * depth);
  }
}

// Panels of rows first .. first+count-1 as they are; that of column j is at panels + j * count.
void fill_rows(const ProductKernels& kernels, const HeadRows& rows, size_t first, size_t count, size_t width,
               float* panels) {
  for (size_t j = 0; j < width; j += kernels.width) {
    const size_t some = std::min(kernels.width, width - j);
    kernels.fill_float(rows.matrix(), {first, count, j, some, round_up(some, kernels.lanes)}, panels + j * count);
  }
}

// --- the result -----------------------------------------------------------------------------------

size_t queries_of(const Attention& a) { return a.tokens < kFewTokens ? kQueries / 2 : kQueries; }

struct ResultArrays {
  ResultArrays(const Attention& a, const ProductKernels& kernels, float* memory) {
    Arrays arrays(memory);
    queries = arrays.take(round_up(kQueries, kernels.lanes) * a.depth);
    keys = arrays.take(kKeys * a.depth + kSlack);
    scores = arrays.take(kKeys * kQueries);
    panel = arrays.take(kKeys * kernels.width);
    sums = arrays.take(kQueries * round_up(a.width, kernels.lanes));
    greatest = arrays.take(kQueries);
    total = arrays.take(kQueries);
    factor = arrays.take(kQueries);
  }
  static size_t floats(const Attention& a, const ProductKernels& kernels) {
    return Arrays::size({round_up(kQueries, kernels.lanes) * a.depth, kKeys * a.depth + kSlack, kKeys * kQueries,
                         kKeys * kernels.width, kQueries * round_up(a.width, kernels.lanes), kQueries, kQueries,
                         kQueries});
  }
  float* queries;  // panels of q, scaled
  float* keys;     // packed rows of k
  float* scores;   // (keys, queries)
  float* panel;    // of v
  float* sums;     // (queries, width)
  float* greatest;
  float* total;
  float* factor;
};

// Tile `tile` of the queries of one head.
void run_tile(const Attention& a, const AttentionResult& result, size_t batch, size_t head, size_t tile,
              const ProductKernels& kernels, const ResultArrays& m) {
  const size_t group = head / (a.heads / a.groups);
  const HeadRows q(a.q, batch, a.tokens, a.heads, head, a.depth);
  const HeadRows k(a.k, batch, a.tokens, a.groups, group, a.depth);
  const HeadRows v(a.v, batch, a.tokens, a.groups, group, a.width);
  const size_t first = tile * queries_of(a), count = std::min(queries_of(a), a.tokens - first);
  const size_t columns = round_up(count, kernels.lanes), stride = round_up(a.width, kernels.lanes);
  fill_columns(kernels, q, first, count, a.depth, m.queries);
  scale(m.queries, a.scale, columns * a.depth);
  std::fill(m.greatest, m.greatest + columns, std::numeric_limits<float>::lowest());
  std::fill(m.total, m.total + columns, 0.0f);
  const Blocks of_queries(count, kernels.rows);
  const Range keys = seen_keys(a, first, first + count - 1, 0, a.tokens);
  for (size_t at = keys.begin; at < keys.end; at += kKeys) {
    const size_t some = std::min(kKeys, keys.end - at);
    const Blocks of_keys(some, kernels.rows);
    pack(kernels, k, at, of_keys, a.depth, m.keys);
    for (size_t j = 0; j < count; j += kernels.width) {
      const size_t wide = std::min(kernels.width, columns - j);
      for (size_t block = 0; block < of_keys.count(); ++block) {
        const size_t r = of_keys.begin(block), rows = of_keys.size(block);
        if (!is_hidden(a, first + j, first + j + wide - 1, at + r, at + r + rows - 1)) {
          kernels.multiply({m.keys + r * a.depth, rows, rows, m.queries + j * a.depth, wide, a.depth, nullptr, 0,
                            m.scores + r * columns + j, columns, wide});
        }
      }
    }
    kernels.online_softmax({m.scores, columns, some, columns,
                            a.bias == nullptr ? nullptr : a.bias + batch * a.tokens + at, seen_of(a),
                            static_cast<int32_t>(at), static_cast<int32_t>(first), m.greatest, m.total, m.factor});
    const bool before = at > keys.begin;
    for (size_t i = 0; before && i < count; ++i) {
      if (m.factor[i] != 1.0f) {
        scale(m.sums + i * stride, m.factor[i], stride);
      }
    }
    for (size_t e = 0; e < a.width; e += kernels.width) {
      const size_t wide = std::min(kernels.width, stride - e);
      kernels.fill_float(v.matrix(), {at, some, e, std::min(wide, a.width - e), wide}, m.panel);
      for (size_t block = 0; block < of_queries.count(); ++block) {
        const size_t r = of_queries.begin(block), rows = of_queries.size(block);
        const Range seen = seen_keys(a, first + r, first + r + rows - 1, at, at + some);
        float* sums = m.sums + r * stride + e;
        if (seen.begin < seen.end || !before) {
          kernels.multiply({m.scores + (seen.begin - at) * columns + r, columns, rows,
                            m.panel + (seen.begin - at) * wide, wide, seen.end - seen.begin, before ? sums : nullptr,
                            stride, sums, stride, wide});
        }
      }
    }
  }
  for (size_t i = 0; i < count; ++i) {
    write_scaled(m.sums + i * stride, 1.0f / m.total[i], a.width,
                 result.out + ((batch * a.tokens + first + i) * a.heads + head) * a.width);
    result.lse[(batch * a.heads + head) * a.tokens + first + i] = m.greatest[i] + row_math::log(m.total[i]);
  }
}

// --- the gradient ---------------------------------------------------------------------------------

size_t tile_of(const Attention& a) {
  const size_t wide = std::max(a.depth, a.width);
  const size_t most = std::max(kLeastOfTile, std::min(kMostOfTile, kTileFloats / wide / kLeastOfTile * kLeastOfTile));
  return std::min(most, round_up(std::max<size_t>(1, divide_up(a.tokens, kTilesOfRow)), kLeastOfTile));
}

struct GradientArrays {
  GradientArrays(const Attention& a, const ProductKernels& kernels, float* memory) {
    const size_t tile = tile_of(a), depth = round_up(a.depth, kernels.lanes), width = round_up(a.width, kernels.lanes);
    Arrays arrays(memory);
    key_columns = arrays.take(tile * a.depth);
    value_columns = arrays.take(tile * a.width);
    key_rows = arrays.take(tile * depth);
    packed_q = arrays.take(tile * a.depth + kSlack);
    packed_dout = arrays.take(tile * a.width + kSlack);
    q_rows = arrays.take(tile * depth);
    dout_rows = arrays.take(tile * width);
    scores = arrays.take(tile * tile);
    gradient = arrays.take(tile * tile);
    packed = arrays.take(kernels.rows * tile + kSlack);
    bias = arrays.take(tile);
    delta = arrays.take(tile);
  }
  static size_t floats(const Attention& a, const ProductKernels& kernels) {
    const size_t tile = tile_of(a), depth = round_up(a.depth, kernels.lanes), width = round_up(a.width, kernels.lanes);
    return Arrays::size({tile * a.depth, tile * a.width, tile * depth, tile * a.depth + kSlack, tile * a.width + kSlack,
                         tile * depth, tile * width, tile * tile, tile * tile, kernels.rows * tile + kSlack, tile,
                         tile});
  }
  float* key_columns;  // panels of k and v as columns
  float* value_columns;
  float* key_rows;  // panels of k
  float* packed_q;  // rows of q and dout
  float* packed_dout;
  float* q_rows;  // panels of q and dout
  float* dout_rows;
  float* scores;    // (queries, keys): probabilities
  float* gradient;  // (queries, keys): gradients of scores
  float* packed;    // rows of these
  float* bias;
  float* delta;
};

// Tiles of queries and keys that meet.
struct Meeting {
  size_t batch, group;
  size_t first_query, queries;
  size_t first_key, keys;
  bool first;  // nothing was added to either before
};

// Probabilities and gradients of scores of one head.
void fill_scores(const Attention& a, const AttentionGradient& g, const Meeting& t, size_t head, size_t stride,
                 const ProductKernels& kernels, const GradientArrays& m) {
  const Blocks blocks(t.queries, kernels.rows);
  const float* lse = g.lse + (t.batch * a.heads + head) * a.tokens + t.first_query;
  for (size_t j = 0; j < stride; j += kernels.width) {
    const size_t wide = std::min(kernels.width, stride - j);
    for (size_t block = 0; block < blocks.count(); ++block) {
      const size_t r = blocks.begin(block), rows = blocks.size(block);
      float* scores = m.scores + r * stride + j;
      float* gradient = m.gradient + r * stride + j;
      const size_t query = t.first_query + r, key = t.first_key + j;
      if (is_hidden(a, query, query + rows - 1, key, key + wide - 1)) {
        for (size_t i = 0; i < rows; ++i) {
          std::fill(scores + i * stride, scores + i * stride + wide, 0.0f);
          std::fill(gradient + i * stride, gradient + i * stride + wide, 0.0f);
        }
        continue;
      }
      kernels.multiply({m.packed_q + r * a.depth, rows, rows, m.key_columns + j * a.depth, wide, a.depth, nullptr, 0,
                        scores, stride, wide});
      kernels.multiply({m.packed_dout + r * a.width, rows, rows, m.value_columns + j * a.width, wide, a.width, nullptr,
                        0, gradient, stride, wide});
      kernels.softmax_gradient({scores, gradient, stride, rows, wide, a.bias == nullptr ? nullptr : m.bias + j, a.scale,
                                lse + r, m.delta + r, seen_of(a), static_cast<int32_t>(key),
                                static_cast<int32_t>(query)});
    }
  }
}

// out (keys, width), rows out_stride apart, += the transpose of scores (queries, keys) times rows (queries, width) in panels.
void add_to_keys(const Attention& a, const Meeting& t, const float* scores, size_t stride, const float* panels,
                 size_t width, bool first, float* out, size_t out_stride, const ProductKernels& kernels) {
  const Blocks blocks(t.keys, kernels.rows);
  for (size_t j = 0; j < width; j += kernels.width) {
    const size_t some = std::min(kernels.width, width - j), wide = round_up(some, kernels.lanes);
    for (size_t block = 0; block < blocks.count(); ++block) {
      const size_t r = blocks.begin(block), rows = blocks.size(block);
      const Range seeing =
          seeing_queries(a, t.first_key + r, t.first_key + r + rows - 1, t.first_query, t.first_query + t.queries);
      const size_t at = seeing.begin - t.first_query;
      float* c = out + r * out_stride + j;
      if (first || seeing.begin < seeing.end) {
        kernels.multiply({scores + at * stride + r, stride, rows, panels + j * t.queries + at * wide, wide,
                          seeing.end - seeing.begin, first ? nullptr : c, out_stride, c, out_stride, some});
      }
    }
  }
}

// The same for queries: out (queries, depth) += the gradients of scores times keys.
void add_to_queries(const Attention& a, const Meeting& t, size_t stride, float* out, size_t out_stride,
                    const ProductKernels& kernels, const GradientArrays& m) {
  const Blocks blocks(t.queries, kernels.rows);
  for (size_t block = 0; block < blocks.count(); ++block) {
    const size_t r = blocks.begin(block), rows = blocks.size(block), query = t.first_query + r;
    const Range seen = seen_keys(a, query, query + rows - 1, t.first_key, t.first_key + t.keys);
    const size_t at = seen.begin - t.first_key, some = seen.end - seen.begin;
    if (some == 0 && !t.first) {
      continue;
    }
    kernels.pack_rows(m.gradient + r * stride + at, stride, rows, some, m.packed);
    for (size_t j = 0; j < a.depth; j += kernels.width) {
      const size_t count = std::min(kernels.width, a.depth - j), wide = round_up(count, kernels.lanes);
      float* c = out + r * out_stride + j;
      kernels.multiply({m.packed, rows, rows, m.key_rows + j * t.keys + at * wide, wide, some, t.first ? nullptr : c,
                        out_stride, c, out_stride, count});
    }
  }
}

void run_meeting(const Attention& a, const AttentionGradient& g, const Meeting& t, const ProductKernels& kernels,
                 const GradientArrays& m) {
  const HeadRows k(a.k, t.batch, a.tokens, a.groups, t.group, a.depth);
  const HeadRows v(a.v, t.batch, a.tokens, a.groups, t.group, a.width);
  const size_t stride = round_up(t.keys, kernels.lanes), heads = a.heads / a.groups;
  fill_columns(kernels, k, t.first_key, t.keys, a.depth, m.key_columns);
  fill_columns(kernels, v, t.first_key, t.keys, a.width, m.value_columns);
  fill_rows(kernels, k, t.first_key, t.keys, a.depth, m.key_rows);
  if (a.bias != nullptr) {
    const float* bias = a.bias + t.batch * a.tokens + t.first_key;
    std::fill(std::copy(bias, bias + t.keys, m.bias), m.bias + stride, 0.0f);
  }
  const Blocks of_queries(t.queries, kernels.rows);
  for (size_t head = t.group * heads; head < (t.group + 1) * heads; ++head) {
    const HeadRows q(a.q, t.batch, a.tokens, a.heads, head, a.depth);
    const HeadRows out(g.out, t.batch, a.tokens, a.heads, head, a.width);
    const HeadRows dout(g.dout, t.batch, a.tokens, a.heads, head, a.width);
    pack(kernels, q, t.first_query, of_queries, a.depth, m.packed_q);
    pack(kernels, dout, t.first_query, of_queries, a.width, m.packed_dout);
    fill_rows(kernels, q, t.first_query, t.queries, a.depth, m.q_rows);
    fill_rows(kernels, dout, t.first_query, t.queries, a.width, m.dout_rows);
    for (size_t i = 0; i < t.queries; ++i) {
      m.delta[i] = dot(out.row(t.first_query + i), dout.row(t.first_query + i), a.width);
    }
    fill_scores(a, g, t, head, stride, kernels, m);
    const auto place = [&](float* values, size_t token, size_t count, size_t at, size_t width) {
      return values + ((t.batch * a.tokens + token) * count + at) * width;
    };
    const bool first = t.first && head == t.group * heads;
    add_to_keys(a, t, m.scores, stride, m.dout_rows, a.width, first,
                place(g.dv, t.first_key, a.groups, t.group, a.width), a.groups * a.width, kernels);
    add_to_keys(a, t, m.gradient, stride, m.q_rows, a.depth, first,
                place(g.dk, t.first_key, a.groups, t.group, a.depth), a.groups * a.depth, kernels);
    add_to_queries(a, t, stride, place(g.dq, t.first_query, a.heads, head, a.depth), a.heads * a.depth, kernels, m);
  }
}

// Tiles of queries that meet some of keys in a round: causal ones meet their own, then those before, one further each time.
size_t meetings_of(const Attention& a, size_t round) {
  return divide_up(a.tokens, tile_of(a)) - (a.causal ? round : 0);
}

// A range of fewer is not worth a thread.
size_t grain_of(size_t tasks, size_t work) {
  return std::max<size_t>(1, tasks * kWorthAThread / std::max<size_t>(1, work));
}

}  // namespace

Tasks attention_tasks(const Attention& attention) {
  const size_t count = attention.batches * attention.heads * divide_up(attention.tokens, queries_of(attention));
  const size_t keys = attention.window > 0 ? std::min(attention.tokens, attention.window) : attention.tokens;
  const size_t each = keys * (attention.depth + attention.width);
  return {count, grain_of(count, attention.batches * attention.heads * attention.tokens * each)};
}

bool run_attention(const Attention& attention, const AttentionResult& result, size_t begin, size_t end,
                   const ProductKernels& kernels) {
  static thread_local Scratch scratch;
  float* memory = scratch.floats(ResultArrays::floats(attention, kernels));
  if (memory == nullptr) {
    return false;
  }
  const ResultArrays arrays(attention, kernels, memory);
  const size_t tiles = divide_up(attention.tokens, queries_of(attention));
  for (size_t task = begin; task < end; ++task) {
    const size_t head = task / tiles, number = task % tiles;
    // Late tiles of causal rows take longest: a late one follows an early one, so that equal ranges take equally long.
    const size_t tile = number % 2 == 0 ? number / 2 : tiles - 1 - number / 2;
    run_tile(attention, result, head / attention.heads, head % attention.heads, tile, kernels, arrays);
  }
  return true;
}

size_t gradient_rounds(const Attention& attention) {
  const size_t tile = tile_of(attention), tiles = divide_up(attention.tokens, tile);
  // The nearest query and key of tiles that are n apart are (n - 1) * tile + 1 apart.
  return attention.window == 0 ? tiles : std::min(tiles, (attention.window + tile - 2) / tile + 1);
}

Tasks gradient_tasks(const Attention& attention, size_t round) {
  const size_t count = attention.batches * attention.groups * meetings_of(attention, round);
  const size_t tile = tile_of(attention);
  const size_t each = attention.heads / attention.groups * tile * tile * 2 * (attention.depth + attention.width);
  return {count, grain_of(count, count * each)};
}

bool run_gradient(const Attention& attention, const AttentionGradient& gradient, size_t round, size_t begin, size_t end,
                  const ProductKernels& kernels) {
  static thread_local Scratch scratch;
  float* memory = scratch.floats(GradientArrays::floats(attention, kernels));
  if (memory == nullptr) {
    return false;
  }
  const GradientArrays arrays(attention, kernels, memory);
  const size_t tile = tile_of(attention), tiles = divide_up(attention.tokens, tile);
  const size_t meetings = meetings_of(attention, round);
  for (size_t task = begin; task < end; ++task) {
    const size_t at = task / meetings;
    const size_t queries = task % meetings + (attention.causal ? round : 0);
    const size_t keys = attention.causal ? queries - round : (queries + round) % tiles;
    const size_t first_query = queries * tile, first_key = keys * tile;
    run_meeting(
        attention, gradient,
        {at / attention.groups, at % attention.groups, first_query, std::min(tile, attention.tokens - first_query),
         first_key, std::min(tile, attention.tokens - first_key), round == 0},
        kernels, arrays);
  }
  return true;
}

}  // namespace kernels
}  // namespace zoexport
