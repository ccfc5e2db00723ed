#include "products.h"

#include <algorithm>

#include "packed_rows.h"
#include "product_variants.h"
#include "scratch.h"
#include "tiled.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kUnit = 32;      // groups of INT4 weights are multiples of it
constexpr size_t kFewPanels = 8;  // with fewer the rows are dealt over threads, and not the columns
constexpr size_t kRowsOfTask = 32;
constexpr size_t kWorthAThread = size_t{1} << 18;  // multiply-adds
// The same for few rows: fewer take as long, as each number of B is unpacked for only a few rows.
constexpr size_t kWorthAThreadAlone = size_t{1} << 16;
constexpr size_t kTiledRows = 256;  // of A at a time
// Matrices of float32 that are worth splitting: larger than adapters, and not those of attention.
constexpr size_t kLeastTiled = 64;

bool is_few_rows(const Product& product, const ProductKernels& kernels) {
  return std::holds_alternative<Int4Matrix>(product.b) && product.b_transposed && !product.a_transposed &&
         product.batches == 1 && product.rows <= kernels.few_rows && product.rows > 0 && !product.bf16;
}

// Division of one matrix of a batch into tasks.
struct Split {
  bool by_columns;  // a task is so many columns; otherwise rows
  size_t tasks;
  size_t size;  // columns or rows of a task
};

Split split_of(const Product& product, const ProductKernels& kernels) {
  if (is_few_rows(product, kernels)) {
    return {true, divide_up(product.columns, kernels.few_columns), kernels.few_columns};
  }
  const size_t panels = divide_up(product.columns, kernels.width);
  const size_t chunks = divide_up(product.rows, kRowsOfTask);
  const bool by_columns = panels >= kFewPanels || panels >= chunks;
  return {by_columns, by_columns ? panels : chunks, by_columns ? kernels.width : kRowsOfTask};
}

struct Range {
  size_t begin;
  size_t end;
};

// A panel of matrix `batch` of B: where it begins, and the stride of its rows.
FloatMatrix panel_of(const Product& product, const ProductKernels& kernels, size_t batch, const Part& part,
                     bool used_once, float* panel) {
  const bool transposed = product.b_transposed;
  if (part.depth == 0) {
    return {panel, part.width};  // of a matrix that may have no memory
  }
  if (const Int4Matrix* int4 = std::get_if<Int4Matrix>(&product.b)) {
    (transposed ? kernels.fill_int4_transposed : kernels.fill_int4)(*int4, part, panel);
  } else if (const Int8Matrix* int8 = std::get_if<Int8Matrix>(&product.b)) {
    (transposed ? kernels.fill_int8_transposed : kernels.fill_int8)(*int8, part, panel);
  } else {
    FloatMatrix b = *std::get_if<FloatMatrix>(&product.b);
    b.values += batch * product.b_batch;
    if (!transposed && used_once && part.count == part.width) {
      return {b.values + part.first * b.stride + part.column, b.stride};  // a copy would cost more than it saves
    }
    (transposed ? kernels.fill_float_transposed : kernels.fill_float)(b, part, panel);
  }
  if (product.bf16) {
    round_to_bf16(panel, part.depth * part.width);
  }
  return {panel, part.width};
}

// What is read of a matrix B that lies transposed, as weights do, for the panel after the one of `part`: the depth below it,
// or the next columns; those may be another thread's, which then finds them in the cache that is shared.
Ahead after(const Product& product, const ProductKernels& kernels, const Part& part, bool keep) {
  const bool below = keep && part.first + part.depth < product.depth;
  const size_t row = below ? part.column : part.column + kernels.width, first = below ? part.first + part.depth : 0;
  const FloatMatrix* const b = std::get_if<FloatMatrix>(&product.b);
  if (b == nullptr || !product.b_transposed || product.batches > 1 || row >= product.columns) {
    return {};
  }
  const size_t begin = keep ? first : part.first;
  return {reinterpret_cast<const char*>(b->values + row * b->stride + begin), b->stride * sizeof(float),
          std::min(kernels.width, product.columns - row), std::min(part.depth, product.depth - begin) * sizeof(float)};
}

// Return the initial values of C, from its element `first` on.
FloatMatrix before_of(const Product& product, size_t first) {
  return product.before != nullptr ? FloatMatrix{product.before + first, product.columns}
                                   : FloatMatrix{product.bias, 0};
}

// The elements of C in these rows and columns of one matrix of the batch. `scratch` holds a panel, then packed rows.
void run_block(const Product& product, const ProductKernels& kernels, size_t batch, Range rows, Range columns,
               float* scratch) {
  const size_t height = rows.end - rows.begin, stride = product.a.stride;
  const float* a = product.a.values + batch * product.a_batch + rows.begin * (product.a_transposed ? 1 : stride);
  const bool keep = height * product.depth <= kRows * kMaxDepth;
  const size_t first = (batch * product.rows + rows.begin) * product.columns;
  const FloatMatrix before = before_of(product, first);
  const PackedRows packed(kernels, {a, stride}, product.a_transposed, height, columns.end - columns.begin, keep,
                          scratch + kPanel, product.c + first, product.columns, product.bf16);
  for_blocks(
      product.depth, block_depth(product.depth), columns.begin, columns.end, kernels.width, keep,
      [&](size_t p, size_t depth) { packed.pack(p, depth); },
      [&](size_t p, size_t depth, size_t j, size_t count) {
        const Part part{p, depth, j, count, divide_up(count, kernels.lanes) * kernels.lanes};
        const FloatMatrix panel = panel_of(product, kernels, batch, part, packed.tiles() <= 2, scratch);
        packed.multiply(panel, p, depth, j, count, before, after(product, kernels, part, keep));
      });
}

size_t packed_floats(const Product& product) {
  return std::min(kRows * kMaxDepth, std::min(kRows, product.rows) * product.depth);
}

// Return the tiled kernels that multiply the product, or null.
const TiledKernels* tiles_of(const Product& product, const ProductKernels& kernels) {
  if (product.bf16) {
    return kernels.bf16;
  }
  if (kernels.tiled == nullptr || product.rows <= kernels.few_rows) {
    return nullptr;
  }
  const bool worth =
      !std::holds_alternative<FloatMatrix>(product.b) ||
      (product.batches == 1 && !product.a_transposed && std::min(product.columns, product.depth) >= kLeastTiled);
  return worth ? kernels.tiled : nullptr;
}

size_t floats_of(size_t numbers) { return divide_up(numbers * sizeof(uint16_t), sizeof(float)); }

size_t tiled_numbers(size_t rows, size_t depth, size_t parts) {
  return divide_up(rows, kTile) * divide_up(depth, kTileDepth) * parts * kTileNumbers;
}

constexpr size_t kMostParts = 3;

// Return whether the whole depth of the rows is packed at once.
bool is_kept(size_t rows, size_t depth, size_t parts) {
  return tiled_numbers(rows, depth, parts) <= tiled_numbers(kTiledRows, kMaxDepth, kMostParts);
}

constexpr size_t kTiledPanel = kMaxDepth * kWidth * kMostParts / 2;  // floats, of 16 bits for each part

size_t tiled_floats(const Product& product, size_t parts) {
  const size_t rows = std::min(kTiledRows, product.rows);
  const size_t depth = is_kept(rows, product.depth, parts) ? product.depth : kMaxDepth * kMostParts / parts;
  return kTiledPanel + floats_of(tiled_numbers(rows, depth, parts));
}

// Packs a panel of B as deep as kernels take it; its parts, where A has several.
size_t pack_part(const Product& product, const TiledKernels& tiled, const Part& part, uint16_t* packed) {
  const bool transposed = product.b_transposed;
  if (const Int4Matrix* int4 = std::get_if<Int4Matrix>(&product.b)) {
    (transposed ? tiled.pack_int4_transposed : tiled.pack_int4)(*int4, part, packed);
    return 2;
  }
  if (const Int8Matrix* int8 = std::get_if<Int8Matrix>(&product.b)) {
    (transposed ? tiled.pack_int8_transposed : tiled.pack_int8)(*int8, part, packed);
    return 1;
  }
  (transposed ? tiled.pack_float_transposed : tiled.pack_float)(*std::get_if<FloatMatrix>(&product.b), part, packed);
  return 3;
}

// Packs a panel of B of any depth, one block below the other.
size_t pack_panel(const Product& product, const TiledKernels& tiled, const Part& whole, uint16_t* packed) {
  const size_t block = block_depth(product.depth);
  size_t done = 0, parts = 0;
  do {
    const Part part{whole.first + done, std::min(block, whole.depth - done), whole.column, whole.count, whole.width};
    parts = std::min(tiled.parts_of_a, pack_part(product, tiled, part, packed));
    packed += part.depth * part.width * parts;
    done += block;
  } while (done < whole.depth);
  return parts;
}

// run_block by tiles, with a panel of one part as deep as one of three has room for. `scratch` holds a panel, then
// packed rows.
void run_tiled_block(const Product& product, const ProductKernels& kernels, size_t batch, Range rows, Range columns,
                     float* scratch) {
  const TiledKernels& tiled = *tiles_of(product, kernels);
  const size_t parts = tiled.parts_of_a;
  const Int8Matrix* const int8 = std::get_if<Int8Matrix>(&product.b);
  const float* const scales = int8 == nullptr || product.bf16 ? nullptr : int8->scales;
  const bool by_column = scales != nullptr && product.b_transposed, by_depth = scales != nullptr && !by_column;
  const size_t height = rows.end - rows.begin, stride = product.a.stride;
  const float* a = product.a.values + batch * product.a_batch + rows.begin * stride;
  const bool keep = is_kept(height, product.depth, parts);
  const size_t first = (batch * product.rows + rows.begin) * product.columns;
  const FloatMatrix before = before_of(product, first);
  auto* const panel = reinterpret_cast<uint16_t*>(scratch);
  auto* const packed = reinterpret_cast<uint16_t*>(scratch + kTiledPanel);
  const auto packed_at = [&](size_t p) { return packed + (keep ? tiled_numbers(height, p, parts) : 0); };
  for_blocks(
      product.depth, block_depth(product.depth) * kMostParts / parts, columns.begin, columns.end, kernels.width, keep,
      [&](size_t p, size_t depth) {
        tiled.pack_rows(a + p, stride, height, depth, by_depth ? scales + p : nullptr, packed_at(p));
      },
      [&](size_t p, size_t depth, size_t j, size_t count) {
        const Part part{p, depth, j, count, divide_up(count, kTile) * kTile};
        TiledBlock block{};
        block.a = packed_at(p);
        block.rows = height;
        block.b = panel;
        block.parts = pack_panel(product, tiled, part, panel);
        block.steps = divide_up(depth, kTileDepth);
        block.scales = by_column ? scales + j : nullptr;
        block.c = product.c + first + j;
        block.c_stride = product.columns;
        block.before = p > 0 ? block.c : before.values == nullptr ? nullptr : before.values + j;
        block.before_stride = p > 0 ? product.columns : before.stride;
        block.count = count;
        tiled.multiply(block);
      });
}

}  // namespace

const ProductKernels& fastest_kernels() { return *fastest_products().kernels; }

size_t block_depth(size_t depth) {
  const size_t blocks = std::max<size_t>(1, divide_up(depth, kMaxDepth));
  return std::max(kUnit, divide_up(divide_up(depth, blocks), kUnit) * kUnit);
}

Product linear(const float* x, size_t T, const Int4Matrix& weight, const float* bias, float* y) {
  return {1, T, weight.N, weight.K, {x, weight.K}, false, weight, true, 0, 0, bias, y};
}

Product linear(const float* x, size_t T, const Int8Matrix& weight, const float* bias, float* y) {
  return {1, T, weight.N, weight.K, {x, weight.K}, false, weight, true, 0, 0, bias, y};
}

Product linear_input_gradient(const float* dy, size_t T, const Int4Matrix& weight, float* dx) {
  return {1, T, weight.K, weight.N, {dy, weight.N}, false, weight, false, 0, 0, nullptr, dx};
}

Product linear_input_gradient(const float* dy, size_t T, const Int8Matrix& weight, float* dx) {
  return {1, T, weight.K, weight.N, {dy, weight.N}, false, weight, false, 0, 0, nullptr, dx};
}

Product matmul(const float* a, const float* b, size_t batches, size_t rows, size_t columns, size_t depth,
               bool a_transposed, bool b_transposed, float* c) {
  return {batches,
          rows,
          columns,
          depth,
          {a, a_transposed ? rows : depth},
          a_transposed,
          FloatMatrix{b, b_transposed ? depth : columns},
          b_transposed,
          rows * depth,
          depth * columns,
          nullptr,
          c};
}

Tasks tasks_of(const Product& product, const ProductKernels& kernels) {
  const Split split = split_of(product, kernels);
  const size_t count = product.batches * split.tasks;
  const size_t work = product.batches * product.rows * product.columns * product.depth;
  const size_t worth = is_few_rows(product, kernels) ? kWorthAThreadAlone : kWorthAThread;
  return {count, std::max<size_t>(1, count * worth / std::max<size_t>(1, work))};
}

bool run_tasks(const Product& product, size_t begin, size_t end, const ProductKernels& kernels) {
  const Split split = split_of(product, kernels);
  if (is_few_rows(product, kernels)) {
    kernels.few_int4({product.a.values, product.a.stride, product.rows, *std::get_if<Int4Matrix>(&product.b),
                      block_depth(product.depth), product.bias, product.c, product.columns, begin * split.size,
                      std::min(product.columns, end * split.size)});
    return true;
  }
  const TiledKernels* const tiled = tiles_of(product, kernels);
  static thread_local Scratch scratch;
  float* memory = scratch.floats(tiled != nullptr ? tiled_floats(product, tiled->parts_of_a)
                                                  : kPanel + packed_floats(product) + kSlack);
  if (memory == nullptr) {
    return false;
  }
  while (begin < end) {
    // The tasks of one matrix.
    const size_t batch = begin / split.tasks;
    const size_t first = begin % split.tasks;
    const size_t last = std::min(split.tasks, first + end - begin);
    begin += last - first;
    const size_t whole = split.by_columns ? product.columns : product.rows;
    const Range part{first * split.size, std::min(whole, last * split.size)};
    const Range rows = split.by_columns ? Range{0, product.rows} : part;
    const Range columns = split.by_columns ? part : Range{0, product.columns};
    const size_t height = tiled != nullptr ? kTiledRows : kRows;
    for (size_t r = rows.begin; r < rows.end; r += height) {
      const Range some{r, std::min(rows.end, r + height)};
      (tiled != nullptr ? run_tiled_block : run_block)(product, kernels, batch, some, columns, memory);
    }
  }
  return true;
}

}  // namespace kernels
}  // namespace zoexport
