#include "products.h"

#include <algorithm>
#include <memory>
#include <new>

#include "product_variants.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kUnit = 32; // groups of INT4 weights are multiples of it
constexpr size_t kRows = 280; // of A at a time: kRows * kMaxDepth floats are packed and used for every panel
constexpr size_t kWidth = 32; // of every variant, at most
constexpr size_t kLine = 64; // bytes of a cache line
constexpr size_t kFewPanels = 8; // with fewer the rows are dealt over threads, and not the columns
constexpr size_t kRowsOfTask = 56;
constexpr size_t kWorthAThread = size_t{1} << 18; // multiply-adds

size_t divide_up(size_t a, size_t b) {
  return (a + b - 1) / b;
}

// What the tasks of one matrix of a batch are.
struct Split {
  bool by_columns; // a task is a panel of columns; otherwise it is kRowsOfTask rows
  size_t tasks;
};

Split split_of(const Product& product, const ProductKernels& kernels) {
  const size_t panels = divide_up(product.columns, kernels.width);
  const size_t chunks = divide_up(product.rows, kRowsOfTask);
  const bool by_columns = panels >= kFewPanels || panels >= chunks;
  return {by_columns, by_columns ? panels : chunks};
}

struct Range {
  size_t begin;
  size_t end;
};

// Memory for one thread. Its lines are aligned, so that no vector of a panel lies in two.
class Scratch {
 public:
  explicit Scratch(size_t floats) : memory_(new (std::nothrow) float[floats + kLine / sizeof(float)]) {}
  bool ok() const {
    return memory_ != nullptr;
  }
  float* floats() const {
    const size_t past = reinterpret_cast<uintptr_t>(memory_.get()) % kLine;
    return memory_.get() + (kLine - past) % kLine / sizeof(float);
  }

 private:
  std::unique_ptr<float[]> memory_;
};

// A panel of matrix `batch` of B: where it begins, and the stride of its rows.
FloatMatrix panel_of(
    const Product& product,
    const ProductKernels& kernels,
    size_t batch,
    const Part& part,
    bool used_once,
    float* panel) {
  const bool transposed = product.b_transposed;
  if (const Int4Matrix* int4 = std::get_if<Int4Matrix>(&product.b)) {
    (transposed ? kernels.fill_int4_transposed : kernels.fill_int4)(*int4, part, panel);
  } else if (const Int8Matrix* int8 = std::get_if<Int8Matrix>(&product.b)) {
    (transposed ? kernels.fill_int8_transposed : kernels.fill_int8)(*int8, part, panel);
  } else {
    FloatMatrix b = *std::get_if<FloatMatrix>(&product.b);
    b.values += batch * product.b_batch;
    if (!transposed && used_once && part.count == part.width) {
      return {b.values + part.first * b.stride + part.column, b.stride}; // a copy would cost more than it saves
    }
    (transposed ? kernels.fill_float_transposed : kernels.fill_float)(b, part, panel);
  }
  return {panel, part.width};
}

// The elements of C in these rows and columns of one matrix of the batch.
void run_block(
    const Product& product,
    const ProductKernels& kernels,
    size_t batch,
    Range rows,
    Range columns,
    float* scratch) {
  float* panel = scratch;
  float* packed = scratch + kMaxDepth * kWidth;
  const float* a = product.a.values + batch * product.a_batch;
  float* c = product.c + batch * product.rows * product.columns;
  const size_t height = rows.end - rows.begin;
  const size_t tiles = divide_up(height, kernels.rows);
  // Tiles of nearly the same height: a low last one would leave the multipliers idle.
  const auto first_row = [&](size_t tile) { return rows.begin + tile * height / tiles; };
  // One row of A, or A as it is where it is transposed, is read as packed rows are.
  const bool pack = !product.a_transposed && height > 1;
  const size_t block = block_depth(product.depth);
  for (size_t p = 0; p == 0 || p < product.depth; p += block) {
    const size_t depth = std::min(block, product.depth - p);
    if (pack) {
      for (size_t tile = 0; tile < tiles; ++tile) {
        const size_t r = first_row(tile);
        kernels.pack_rows(
            a + r * product.a.stride + p, product.a.stride, first_row(tile + 1) - r, depth,
            packed + (r - rows.begin) * depth);
      }
    }
    for (size_t j = columns.begin; j < columns.end; j += kernels.width) {
      const size_t count = std::min(kernels.width, columns.end - j);
      const size_t width = divide_up(count, kernels.lanes) * kernels.lanes;
      const FloatMatrix b = panel_of(product, kernels, batch, {p, depth, j, count, width}, tiles <= 2, panel);
      for (size_t tile = 0; tile < tiles; ++tile) {
        const size_t r = first_row(tile);
        const size_t high = first_row(tile + 1) - r;
        float* out = c + r * product.columns + j;
        Tile t{};
        t.a = pack ? packed + (r - rows.begin) * depth
                   : product.a_transposed ? a + p * product.a.stride + r : a + r * product.a.stride + p;
        t.a_stride = pack ? high : product.a_transposed ? product.a.stride : 1;
        t.rows = high;
        t.panel = b.values;
        t.panel_stride = b.stride;
        t.depth = depth;
        t.before = p > 0 ? out : product.bias != nullptr ? product.bias + j : nullptr;
        t.before_stride = p > 0 ? product.columns : 0;
        t.c = out;
        t.c_stride = product.columns;
        t.count = count;
        kernels.multiply(t);
      }
    }
  }
}

} // namespace

const ProductKernels& fastest_kernels() {
  return *fastest_products().kernels;
}

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

Product matmul(
    const float* a,
    const float* b,
    size_t batches,
    size_t rows,
    size_t columns,
    size_t depth,
    bool a_transposed,
    bool b_transposed,
    float* c) {
  return {
      batches,
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
  return {count, std::max<size_t>(1, count * kWorthAThread / std::max<size_t>(1, work))};
}

bool run_tasks(const Product& product, size_t begin, size_t end, const ProductKernels& kernels) {
  const Split split = split_of(product, kernels);
  const size_t high = std::min(kRows, product.rows);
  const size_t packed = high * std::min(block_depth(product.depth), product.depth);
  const Scratch scratch(kMaxDepth * kWidth + packed + kSlack);
  if (!scratch.ok()) {
    return false;
  }
  while (begin < end) {
    // The tasks of one matrix.
    const size_t batch = begin / split.tasks;
    const size_t first = begin % split.tasks;
    const size_t last = std::min(split.tasks, first + end - begin);
    begin += last - first;
    const size_t size = split.by_columns ? kernels.width : kRowsOfTask;
    const size_t whole = split.by_columns ? product.columns : product.rows;
    const Range part{first * size, std::min(whole, last * size)};
    const Range rows = split.by_columns ? Range{0, product.rows} : part;
    const Range columns = split.by_columns ? part : Range{0, product.columns};
    for (size_t r = rows.begin; r < rows.end; r += kRows) {
      run_block(product, kernels, batch, {r, std::min(rows.end, r + kRows)}, columns, scratch.floats());
    }
  }
  return true;
}

} // namespace kernels
} // namespace zoexport
