#include "linear_label_logprobs.h"

#include <algorithm>
#include <cmath>

#include "packed_rows.h"
#include "rounded.h"
#include "scratch.h"

namespace zoexport {
namespace kernels {
namespace {

// 256 KB of logits, which stay in a cache of the thread's own; a weight is unpacked once for so many rows.
constexpr size_t kBlockRows = 64;
constexpr size_t kBlockColumns = 1024;

// Blocks are of nearly the same height: few rows have kernels of their own, with other bits where others have tiles.
size_t row_blocks(const LabelProduct& product) { return divide_up(product.rows, kBlockRows); }

size_t first_row(const LabelProduct& product, size_t block) { return block * product.rows / row_blocks(product); }

RoundedRows rounded_block(const LabelProduct& product, size_t first, size_t rows) {
  return rounded_in(product.rounded + rounded_floats(first, product.depth), rows, product.depth);
}

// The columns first .. first+count-1 of a layer's weight.
Int4Matrix block_of(const Int4Matrix& weight, size_t first, size_t count) {
  return {weight.codes + first * (weight.K / 2), weight.scales + first * (weight.K / weight.group_size), count,
          weight.K, weight.group_size};
}

// logits (rows, count) of rows from `row` and of columns from `column` on.
bool multiply(const LabelProduct& product, size_t row, size_t rows, size_t column, size_t count, float* logits) {
  const float* x = product.x + row * product.depth;
  const float* bias = product.bias == nullptr ? nullptr : product.bias + column;
  const auto run = [](const auto& part) { return run_tasks(part, 0, tasks_of(part).count); };
  if (const Int4Matrix* packed = std::get_if<Int4Matrix>(&product.weight)) {
    const Int4Matrix weight = block_of(*packed, column, count);
    return product.rounded == nullptr ? run(linear(x, rows, weight, bias, logits))
                                      : run(RoundedLinear{rounded_block(product, row, rows), weight, bias, logits});
  }
  const FloatMatrix& weight = std::get<FloatMatrix>(product.weight);
  Product plain = matmul(x, weight.values + column * weight.stride, 1, rows, count, product.depth, false, true, logits);
  plain.bias = bias;
  return run(plain);
}

}  // namespace

size_t column_blocks(size_t columns) { return divide_up(columns, kBlockColumns); }

Tasks tasks_of(const RoundLabelRows& rows) {
  return {rows.product.rounded == nullptr ? 0 : row_blocks(rows.product), 1};
}

bool run_tasks(const RoundLabelRows& rows, size_t begin, size_t end) {
  const LabelProduct& product = rows.product;
  for (size_t block = begin; block < end; ++block) {
    const size_t first = first_row(product, block), count = first_row(product, block + 1) - first;
    const RoundRows part{product.x + first * product.depth, rounded_block(product, first, count)};
    run_tasks(part, 0, count);
  }
  return true;
}

Tasks tasks_of(const LabelProduct& product) { return {column_blocks(product.columns), 1}; }

bool run_tasks(const LabelProduct& product, size_t begin, size_t end) {
  static thread_local Scratch scratch;
  float* logits = scratch.floats(std::min(kBlockRows, product.rows) * std::min(kBlockColumns, product.columns));
  if (logits == nullptr) {
    return false;
  }
  for (size_t block = begin; block < end; ++block) {
    const size_t column = block * kBlockColumns, count = std::min(kBlockColumns, product.columns - column);
    for (size_t part = 0; part < row_blocks(product); ++part) {
      const size_t first = first_row(product, part), rows = first_row(product, part + 1) - first;
      if (!multiply(product, first, rows, column, count, logits)) {
        return false;
      }
      if (product.scale != 1.0f) {
        std::transform(logits, logits + rows * count, logits, [&](float logit) { return logit * product.scale; });
      }
      if (product.cap > 0.0f) {
        cap_logits(logits, rows * count, product.cap, logits);
      }
      for (size_t r = 0; r < rows; ++r) {
        const size_t row = first + r;
        const float* of_row = logits + r * count;
        const LogitSum part = logit_sum(of_row, count);
        product.parts[block * product.rows + row] = part;
        const auto label = static_cast<size_t>(product.label_tokens[row % product.M]);
        if (label >= column && label - column < count) {
          product.label_logits[row] = of_row[label - column];
          product.leads[row] = is_first_greatest(of_row, label - column, part.most);
        }
      }
    }
  }
  return true;
}

void finish_label_rows(const LabelProduct& product, float* logprobs, float* is_argmax) {
  const size_t blocks = column_blocks(product.columns);
  for (size_t row = 0; row < product.rows; ++row) {
    const auto part = [&](size_t block) -> const LogitSum& { return product.parts[block * product.rows + row]; };
    size_t first = 0;  // the block of the first of the greatest logits
    for (size_t block = 1; block < blocks; ++block) {
      first = part(block).most > part(first).most ? block : first;
    }
    const double most = static_cast<double>(part(first).most);
    double sum = 0.0;
    for (size_t block = 0; block < blocks; ++block) {
      // A block of only -infinity adds nothing, even if the greatest logit is -infinity.
      const double own = static_cast<double>(part(block).most);
      sum += part(block).sum == 0.0 ? 0.0 : part(block).sum * std::exp(own - most);
    }
    const auto label = static_cast<size_t>(product.label_tokens[row % product.M]);
    logprobs[row] = static_cast<float>((static_cast<double>(product.label_logits[row]) - most) - std::log(sum));
    is_argmax[row] = product.leads[row] && label / kBlockColumns == first ? 1.0f : 0.0f;
  }
}

}  // namespace kernels
}  // namespace zoexport
