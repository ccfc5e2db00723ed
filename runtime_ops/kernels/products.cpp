#include "products.h"

#include <algorithm>

#include "product_variants.h"
#include "scratch.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kUnit = 32; // groups of INT4 weights are multiples of it
constexpr size_t kRows = 280; // of A at a time: at most kRows * kMaxDepth floats are packed
constexpr size_t kWidth = 32; // of every variant, at most
constexpr size_t kFewPanels = 8; // with fewer the rows are dealt over threads, and not the columns
constexpr size_t kRowsOfTask = 32;
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

// The elements of C in these rows and columns of one matrix of the batch. `scratch` holds a panel, then packed rows.
class Block {
 public:
  Block(const Product& product, const ProductKernels& kernels, size_t batch, Range rows, Range columns, float* scratch)
      : product_(product),
        kernels_(kernels),
        batch_(batch),
        rows_(rows),
        columns_(columns),
        panel_(scratch),
        packed_(scratch + kMaxDepth * kWidth),
        a_(product.a.values + batch * product.a_batch),
        c_(product.c + batch * product.rows * product.columns),
        height_(rows.end - rows.begin),
        tiles_(divide_up(
            height_,
            columns.end - columns.begin <= kernels.lanes ? kernels.narrow_rows : kernels.rows)),
        // One row of A, or A as it is where it is transposed, is read as packed rows are.
        pack_(!product.a_transposed && height_ > 1),
        keep_(height_ * product.depth <= kRows * kMaxDepth) {}

  void run() const {
    const size_t block = block_depth(product_.depth);
    if (keep_) {
      // The rows are packed once. Each panel of C is finished before the next one, so that it is written once.
      for (size_t p = 0; p < product_.depth; p += block) {
        pack(p, std::min(block, product_.depth - p));
      }
      for (size_t j = columns_.begin; j < columns_.end; j += kernels_.width) {
        for (size_t p = 0; p == 0 || p < product_.depth; p += block) {
          multiply(p, std::min(block, product_.depth - p), j);
        }
      }
      return;
    }
    for (size_t p = 0; p < product_.depth; p += block) {
      const size_t depth = std::min(block, product_.depth - p);
      pack(p, depth);
      for (size_t j = columns_.begin; j < columns_.end; j += kernels_.width) {
        multiply(p, depth, j);
      }
    }
  }

 private:
  // Tiles are of nearly the same height: a low last one would leave the multipliers idle.
  size_t first_row(size_t tile) const {
    return rows_.begin + tile * height_ / tiles_;
  }

  float* packed(size_t p, size_t depth, size_t row) const {
    return packed_ + (keep_ ? p * height_ : 0) + (row - rows_.begin) * depth;
  }

  void pack(size_t p, size_t depth) const {
    for (size_t tile = 0; pack_ && tile < tiles_; ++tile) {
      const size_t r = first_row(tile);
      const float* a = a_ + r * product_.a.stride + p;
      kernels_.pack_rows(a, product_.a.stride, first_row(tile + 1) - r, depth, packed(p, depth, r));
    }
  }

  void multiply(size_t p, size_t depth, size_t j) const {
    const size_t count = std::min(kernels_.width, columns_.end - j);
    const size_t width = divide_up(count, kernels_.lanes) * kernels_.lanes;
    const FloatMatrix b = panel_of(product_, kernels_, batch_, {p, depth, j, count, width}, tiles_ <= 2, panel_);
    const size_t stride = product_.a.stride;
    for (size_t tile = 0; tile < tiles_; ++tile) {
      const size_t r = first_row(tile);
      float* out = c_ + r * product_.columns + j;
      Tile t{};
      t.rows = first_row(tile + 1) - r;
      t.a = pack_ ? packed(p, depth, r) : a_ + (product_.a_transposed ? p * stride + r : r * stride + p);
      t.a_stride = pack_ ? t.rows : product_.a_transposed ? stride : 1;
      t.panel = b.values;
      t.panel_stride = b.stride;
      t.depth = depth;
      t.before = p > 0 ? out : product_.bias != nullptr ? product_.bias + j : nullptr;
      t.before_stride = p > 0 ? product_.columns : 0;
      t.c = out;
      t.c_stride = product_.columns;
      t.count = count;
      kernels_.multiply(t);
    }
  }

  const Product& product_;
  const ProductKernels& kernels_;
  const size_t batch_;
  const Range rows_;
  const Range columns_;
  float* const panel_;
  float* const packed_;
  const float* const a_;
  float* const c_;
  const size_t height_;
  const size_t tiles_;
  const bool pack_; // rows are packed
  const bool keep_; // the whole depth of them fits
};

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
  const size_t packed = std::min(kRows * kMaxDepth, std::min(kRows, product.rows) * product.depth);
  static thread_local Scratch scratch;
  float* memory = scratch.floats(kMaxDepth * kWidth + packed + kSlack);
  if (memory == nullptr) {
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
      Block(product, kernels, batch, {r, std::min(rows.end, r + kRows)}, columns, memory).run();
    }
  }
  return true;
}

} // namespace kernels
} // namespace zoexport
