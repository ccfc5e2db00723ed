#include <algorithm>

#include "grid.h"
#include "grid_kernels.h"
#include "packed_rows.h"
#include "scratch.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kRowsOfCopy = kRows / 2;          // at a time, of both copies of a query
constexpr size_t kWorthAThread = size_t{1} << 18;  // multiply-adds

struct Shape {
  size_t N;
  size_t K;
};

Shape shape_of(const GridLinear& product) {
  return std::visit([](const auto& weight) { return Shape{weight.N, weight.K}; }, product.weight);
}

size_t rows_of_copy(const GridLinear& product) { return product.rows / (size_t{2} * product.queries); }

// The levels of a panel of weights whose rows do not begin at whole blocks of noise, as GridKernels::draw gives others.
void draw_by_row(const rng::Stream& stream, const uint64_t (&first)[rng::kLevelRows], size_t depth,
                 const PairTable& table, rng::DrawLevels draw, uint32_t* out) {
  for (size_t row = 0; row < rng::kLevelRows; ++row) {
    int8_t levels[kMaxDepth] = {};
    rng::levels(stream, first[row], depth, table, rng::Rounding::kFirst, levels, draw);
    for (size_t p = 0; p < kMaxDepth; p += 4) {
      uint32_t four = 0;
      for (size_t i = 0; i < 4; ++i) {
        four |= static_cast<uint32_t>(static_cast<uint8_t>(levels[p + i])) << (8 * i);
      }
      out[p / 4 * rng::kLevelRows + row] = four;
    }
  }
}

void draw_levels(const GridLinear& product, const GridKernels& kernels, Shape shape, uint32_t query, const Part& part,
                 uint32_t* levels) {
  const rng::Stream stream{product.seed, product.tensor_id, query, product.step};
  for (size_t unit = 0; unit < part.count; unit += rng::kLevelRows) {
    uint64_t first[rng::kLevelRows];
    rng::LevelRows rows{{}, 1, divide_up(part.depth, 16) * 4};
    for (size_t i = 0; i < rng::kLevelRows; ++i) {
      const size_t n = part.column + std::min(unit + i, part.count - 1);
      first[i] = uint64_t{n} * shape.K + part.first;
      rows.first[i] = static_cast<uint32_t>(first[i] / 4);
    }
    uint32_t* out = levels + unit / rng::kLevelRows * kLevelWords;
    if (shape.K % 4 == 0) {
      kernels.draw(stream, rows, product.table, rng::Rounding::kFirst, out);
    } else {
      draw_by_row(stream, first, part.depth, product.table, kernels.draw, out);
    }
  }
}

// Panels begin .. end-1 of rows row .. row+count-1 of both copies of a query. memory: two panels, then packed rows.
void run_query(const GridLinear& product, const ProductVariant& variant, uint32_t query, size_t row, size_t count,
               size_t begin, size_t end, float* memory) {
  const ProductKernels& kernels = *variant.kernels;
  const Shape shape = shape_of(product);
  const size_t first = begin * kernels.width, last = std::min(shape.N, end * kernels.width);
  const bool keep = 2 * count * shape.K <= kRows * kMaxDepth;
  float* const plus = memory;
  float* const minus = memory + kPanel;
  const auto rows_of = [&](size_t sign) {
    const size_t at = (size_t{2} * query + sign) * rows_of_copy(product) + row;
    float* packed = memory + 2 * kPanel + sign * (count * (keep ? shape.K : block_depth(shape.K)) + kSlack);
    return PackedRows(kernels, {product.x + at * shape.K, shape.K}, false, count, last - first, keep, packed,
                      product.y + at * shape.N, shape.N);
  };
  const PackedRows up = rows_of(0), down = rows_of(1);
  for_blocks(
      shape.K, block_depth(shape.K), first, last, kernels.width, keep,
      [&](size_t p, size_t depth) {
        up.pack(p, depth);
        down.pack(p, depth);
      },
      [&](size_t p, size_t depth, size_t j, size_t width) {
        const Part part{p, depth, j, width, divide_up(width, kernels.lanes) * kernels.lanes};
        uint32_t levels[kPanelLevels];
        draw_levels(product, *variant.grid, shape, query, part, levels);
        if (const Int4Matrix* int4 = std::get_if<Int4Matrix>(&product.weight)) {
          variant.grid->fill_int4(*int4, part, levels, plus, minus);
        } else {
          variant.grid->fill_int8(*std::get_if<Int8Matrix>(&product.weight), part, levels, plus, minus);
        }
        up.multiply({plus, part.width}, p, depth, j, width, {product.bias, 0});
        down.multiply({minus, part.width}, p, depth, j, width, {product.bias, 0});
      });
}

}  // namespace

bool grid_rows_fit(const GridLinear& product) {
  return product.queries > 0 && product.rows % (size_t{2} * product.queries) == 0;
}

Tasks tasks_of(const GridLinear& product, const ProductVariant& variant) {
  const Shape shape = shape_of(product);
  const size_t count = rows_of_copy(product) == 0 ? 0 : product.queries * divide_up(shape.N, variant.kernels->width);
  const size_t work = product.rows * shape.N * shape.K;
  return {count, std::max<size_t>(1, count * kWorthAThread / std::max<size_t>(1, work))};
}

bool run_tasks(const GridLinear& product, size_t begin, size_t end, const ProductVariant& variant) {
  const Shape shape = shape_of(product);
  const size_t copy = rows_of_copy(product), panels = divide_up(shape.N, variant.kernels->width);
  // Pieces of nearly the same height: for each of them the noise is drawn again.
  const size_t pieces = divide_up(copy, kRowsOfCopy);
  static thread_local Scratch scratch;
  float* memory =
      scratch.floats(2 * (kPanel + kSlack) + std::min(kRows * kMaxDepth, 2 * std::min(kRowsOfCopy, copy) * shape.K));
  if (memory == nullptr) {
    return false;
  }
  while (begin < end) {
    // The tasks of one query.
    const size_t query = begin / panels, first = begin % panels, last = std::min(panels, first + end - begin);
    begin += last - first;
    for (size_t piece = 0; piece < pieces; ++piece) {
      const size_t row = piece * copy / pieces, next = (piece + 1) * copy / pieces;
      run_query(product, variant, static_cast<uint32_t>(query), row, next - row, first, last, memory);
    }
  }
  return true;
}

}  // namespace kernels
}  // namespace zoexport
