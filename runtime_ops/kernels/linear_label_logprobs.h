// Log-probabilities of label entries over the logits of a linear layer, which nobody keeps: a thread holds those of a few
// rows and columns at a time, and a row's sums over blocks of columns are put together at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include "label_logprobs.h"
#include "products.h"

namespace zoexport {
namespace kernels {

struct LabelProduct {
  const float* x;  // (rows, depth)
  size_t rows;
  size_t depth;
  float* rounded;  // rounded_floats(rows, depth) floats, where x is multiplied rounded as rounded.h has it; else null
  std::variant<FloatMatrix, Int4Matrix> weight;  // (columns, depth); an Int4Matrix where x is rounded
  size_t columns;
  const float* bias;            // columns floats, or null
  float scale;                  // of logits
  float cap;                    // then cap * tanh(logit / cap); 0: none
  const int64_t* label_tokens;  // (M), in 0 .. columns-1; row r has label r % M
  size_t M;
  LogitSum* parts;      // (blocks of columns, rows)
  float* label_logits;  // (rows)
  bool* leads;          // (rows): whether the label is the first of the greatest logits in its block of columns
};

// Blocks of columns that `columns` are dealt into.
size_t column_blocks(size_t columns);

// Rounds x, in blocks of rows, if the product needs that.
struct RoundLabelRows {
  const LabelProduct& product;
};
Tasks tasks_of(const RoundLabelRows& rows);
bool run_tasks(const RoundLabelRows& rows, size_t begin, size_t end);

// Fills parts, label_logits and leads, a task for each block of columns. As of products (products.h), results do not depend
// on how tasks are dealt.
Tasks tasks_of(const LabelProduct& product);
bool run_tasks(const LabelProduct& product, size_t begin, size_t end);

// From what the product filled: logprobs and is_argmax (rows), as label_logprobs_rows gives them.
void finish_label_rows(const LabelProduct& product, float* logprobs, float* is_argmax);

}  // namespace kernels
}  // namespace zoexport
