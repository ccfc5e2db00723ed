// Log-probabilities of label entries, and their gradient.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zoexport {
namespace kernels {

// The first label outside [0, V), as an index into label_tokens (M), or -1 where all are inside.
int64_t find_bad_label(const int64_t* label_tokens, size_t M, size_t V);

// For rows begin .. end-1 of the C*M rows of logits (row r is copy r / M, entry r % M):
//   logprobs[r]  = logits[r, label] - log sum_v exp(logits[r, v]), to about 1e-6 absolute;
//   is_argmax[r] = 1 where label is the lowest index of the greatest logit, else 0.
// A row with a NaN or +infinity gives NaN, so that a run that diverged is seen.
//
// logits: (C, M, V) dense, V >= 1. label_tokens: M numbers in [0, V), which find_bad_label checks.
// logprobs, is_argmax: (C, M) dense; outputs overlap nothing. Row ranges may run on different threads.
void label_logprobs_rows(const float* logits, const int64_t* label_tokens, size_t M, size_t V, size_t begin, size_t end,
                         float* logprobs, float* is_argmax);

// All C*M rows. Returns false, with nothing written, where V is 0 or a label lies outside [0, V).
bool label_logprobs(const float* logits, const int64_t* label_tokens, size_t C, size_t M, size_t V, float* logprobs,
                    float* is_argmax);

// Terms of a softmax over a row of logits or a part of it: the maximum, and the sum of exp(logit - most). `sum` is NaN
// if a logit is NaN or +infinity; `most` is -infinity if all are NaN or all are -infinity.
struct LogitSum {
  float most;
  double sum;
};
LogitSum logit_sum(const float* logits, size_t count);

// Return whether `label` is the lowest index of `most`, the greatest of the logits.
bool is_first_greatest(const float* logits, size_t label, float most);

// out = cap * tanh(logit / cap), to about 2e-7 * cap; may be in place.
void cap_logits(const float* logits, size_t count, float cap, float* out);

// For rows begin .. end-1 of the M rows of one copy: what label_logprobs_rows gives, and
//   gradient[m, v] = label_weights[m] * ((v == label ? 1 : 0) - softmax(logits[m])[v])
// of the weighted sum of log-probabilities. Its error is at most about 1e-6 * label_weights[m]; a row with a NaN or
// +infinity gives NaN.
//
// logits: (M, V) dense. label_weights: M numbers. gradient: (M, V) dense; the rest as above.
void label_gradient_rows(const float* logits, const int64_t* label_tokens, const float* label_weights, size_t V,
                         size_t begin, size_t end, float* logprobs, float* is_argmax, float* gradient);

}  // namespace kernels
}  // namespace zoexport
