#include "recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "each_width.h"
#include "scratch.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kSums = 16;  // partial sums of a dot product

// --- rows of a state, each of `width` elements ---------------------------------------------------

// state (depth, width) times the factor of each row, and sum += each row times its key.
ZO_EACH_WIDTH void decay_state(const float* factors, const float* keys, size_t depth, size_t width, float* state,
                               float* sum) {
  for (size_t d = 0; d < depth; ++d) {
    float* const row = state + d * width;
    for (size_t i = 0; i < width; ++i) {
      row[i] *= factors[d];
      sum[i] += keys[d] * row[i];
    }
  }
}

// state (depth, width) += key times value, and sum += each row times its query.
ZO_EACH_WIDTH void write_state(const float* keys, const float* value, const float* queries, size_t depth, size_t width,
                               float* state, float* sum) {
  for (size_t d = 0; d < depth; ++d) {
    float* const row = state + d * width;
    for (size_t i = 0; i < width; ++i) {
      row[i] += keys[d] * value[i];
      sum[i] += queries[d] * row[i];
    }
  }
}

// The sum of the products of two rows.
inline float dot_rows(const float* a, const float* b, size_t width) {
  float sums[kSums] = {};
  size_t at = 0;
  for (; at + kSums <= width; at += kSums) {
    for (size_t i = 0; i < kSums; ++i) {
      sums[i] += a[at + i] * b[at + i];
    }
  }
  float sum = 0.0f;
  for (; at < width; ++at) {
    sum += a[at] * b[at];
  }
  for (size_t i = 0; i < kSums && width >= kSums; ++i) {
    sum += sums[i];
  }
  return sum;
}

// Add the gradients of a token's result to those of the state after it, (depth, width), of its query, of its key and of
// the value that it wrote.
ZO_EACH_WIDTH void read_gradient(const float* state, const float* queries, const float* keys, const float* value,
                                 const float* dout, size_t depth, size_t width, float* dstate, float* dqueries,
                                 float* dkeys, float* dvalue) {
  for (size_t d = 0; d < depth; ++d) {
    const float* const row = state + d * width;
    float* const drow = dstate + d * width;
    for (size_t i = 0; i < width; ++i) {
      drow[i] += queries[d] * dout[i];
      dvalue[i] += keys[d] * drow[i];
    }
    dqueries[d] += dot_rows(row, dout, width);
    dkeys[d] += dot_rows(drow, value, width);
  }
}

// Back over the delta rule, if dwrong, the gradient of what it corrects, is not null, and over the decay: dstate becomes
// that of the state before, and logs (depth) the gradients of the factors' logarithms.
ZO_EACH_WIDTH void decay_gradient(const float* before, const float* factors, const float* keys, const float* dwrong,
                                  size_t depth, size_t width, float* dstate, float* dkeys, float* logs) {
  for (size_t d = 0; d < depth; ++d) {
    const float* const row = before + d * width;
    float* const drow = dstate + d * width;
    if (dwrong != nullptr) {
      dkeys[d] -= factors[d] * dot_rows(row, dwrong, width);
      for (size_t i = 0; i < width; ++i) {
        drow[i] -= keys[d] * dwrong[i];
      }
    }
    for (size_t i = 0; i < width; ++i) {
      drow[i] *= factors[d];
    }
    logs[d] = dot_rows(drow, row, width);
  }
}

ZO_EACH_WIDTH void add_taps(const float* x, const float* taps, size_t channels, float* out) {
  for (size_t i = 0; i < channels; ++i) {
    out[i] += taps[i] * x[i];
  }
}

// --- one head ------------------------------------------------------------------------------------

// A head of one batch, token after token.
struct Head {
  const Recurrence& of;
  size_t batch;
  size_t head;

  size_t row(size_t token) const { return (batch * of.tokens + token) * of.heads + head; }
  size_t key_row(size_t token) const {
    return (batch * of.tokens + token) * of.key_heads + head / (of.heads / of.key_heads);
  }
  const float* q(size_t token) const { return of.q + key_row(token) * of.depth; }
  const float* k(size_t token) const { return of.k + key_row(token) * of.depth; }
  const float* v(size_t token) const { return of.v + row(token) * of.width; }
  float rate(size_t i) const { return of.rates == nullptr ? 1.0f : of.rates[head * of.depth + i]; }
  float beta(size_t token) const { return of.beta[row(token)]; }

  // The factor of each row of the state, (depth).
  void factors(size_t token, float* out) const {
    const float* const decay = of.decay + row(token) * of.decays;
    if (of.decays == 1 && of.rates == nullptr) {
      std::fill_n(out, of.depth, std::exp(decay[0]));
      return;
    }
    for (size_t i = 0; i < of.depth; ++i) {
      out[i] = std::exp(decay[of.decays == 1 ? 0 : i] * rate(i));
    }
  }

  // state (depth, width) goes on by one token. factors (depth) is scratch. u and, with beta, what the delta rule
  // corrects go to `value` and `wrong` (width); the result to `out`.
  void step(size_t token, float* factors_, float* state, float* value, float* wrong, float* out) const {
    factors(token, factors_);
    std::fill_n(wrong, of.width, 0.0f);
    const float *const key = k(token), *const query = q(token), *const given = v(token);
    decay_state(factors_, key, of.depth, of.width, state, wrong);
    for (size_t i = 0; i < of.width; ++i) {
      wrong[i] = given[i] - wrong[i];
      value[i] = of.beta == nullptr ? given[i] : beta(token) * wrong[i];
    }
    std::fill_n(out, of.width, 0.0f);
    write_state(key, value, query, of.depth, of.width, state, out);
  }
};

float* own_memory(size_t floats) {
  static thread_local Scratch scratch;
  return scratch.floats(floats);
}

// Memory of a head's gradients: states (chunks, depth, width) at the first tokens of chunks, and of a chunk's tokens the
// states after each, u and what the delta rule corrects.
struct Kept {
  size_t chunk;
  size_t chunks;
  float* starts;
  float* states;   // (chunk, depth, width)
  float* values;   // (chunk, width)
  float* wrong;    // (chunk, width)
  float* factors;  // (depth)
  float* logs;     // (depth)
  float* dstate;   // (depth, width)
  float* dvalue;   // (width)
  float* out;      // (width)
};

// The gradients of one head, added to those of its part.
void run_gradient(const Head& head, const RecurrenceGradient& to, size_t part, const Kept& kept) {
  const Recurrence& of = head.of;
  const size_t size = of.depth * of.width, width = of.width;
  std::fill_n(kept.starts, size, 0.0f);
  for (size_t token = 0; token < (kept.chunks - 1) * kept.chunk; ++token) {
    float* const next = kept.starts + (token / kept.chunk + 1) * size;
    if (token % kept.chunk == 0) {
      std::copy_n(next - size, size, next);
    }
    head.step(token, kept.factors, next, kept.values, kept.wrong, kept.out);
  }
  std::fill_n(kept.dstate, size, 0.0f);
  for (size_t chunk = kept.chunks; chunk-- > 0;) {
    const size_t first = chunk * kept.chunk, count = std::min(kept.chunk, of.tokens - first);
    const float* const start = kept.starts + chunk * size;
    for (size_t i = 0; i < count; ++i) {
      float* const state = kept.states + i * size;
      std::copy_n(i == 0 ? start : state - size, size, state);
      head.step(first + i, kept.factors, state, kept.values + i * width, kept.wrong + i * width, kept.out);
    }
    for (size_t i = count; i-- > 0;) {
      const size_t token = first + i, row = head.row(token);
      const size_t part_row = ((head.batch * of.tokens + token) * to.parts + part) * of.depth;
      const float *const key = head.k(token), *const query = head.q(token), *const dout = to.out + row * width;
      const float *const state = kept.states + i * size, *const value = kept.values + i * width;
      float *const dq = to.q + part_row, *const dk = to.k + part_row;
      std::fill_n(kept.dvalue, width, 0.0f);
      read_gradient(state, query, key, value, dout, of.depth, width, kept.dstate, dq, dk, kept.dvalue);
      float* const dv = to.v + row * width;
      float strength = 1.0f;
      to.beta[row] = 0.0f;
      if (of.beta != nullptr) {
        strength = head.beta(token);
        to.beta[row] = dot_rows(kept.dvalue, kept.wrong + i * width, width);
      }
      for (size_t j = 0; j < width; ++j) {
        dv[j] = strength * kept.dvalue[j];
      }
      head.factors(token, kept.factors);
      decay_gradient(i == 0 ? start : state - size, kept.factors, key, of.beta == nullptr ? nullptr : dv, of.depth,
                     width, kept.dstate, dk, kept.logs);
      float* const ddecay = to.decay + row * of.decays;
      std::fill_n(ddecay, of.decays, 0.0f);
      for (size_t d = 0; d < of.depth; ++d) {
        ddecay[of.decays == 1 ? 0 : d] += head.rate(d) * kept.logs[d];
      }
    }
  }
}

}  // namespace

bool run_recurrence(const Recurrence& of, const Carried& carried, float* out, size_t begin, size_t end) {
  const size_t size = of.depth * of.width;
  float* const memory = own_memory(size + of.depth + 2 * of.width);
  if (memory == nullptr) {
    return false;
  }
  float *const state = memory, *const factors = state + size, *const value = factors + of.depth;
  float* const wrong = value + of.width;
  for (size_t task = begin; task < end; ++task) {
    const Head head{of, task / of.heads, task % of.heads};
    if (carried.before == nullptr) {
      std::fill_n(state, size, 0.0f);
    } else {
      std::copy_n(carried.before + head.head * size, size, state);
    }
    for (size_t token = 0; token < of.tokens; ++token) {
      head.step(token, factors, state, value, wrong, out + head.row(token) * of.width);
      if (carried.after != nullptr && token + 1 == carried.count) {
        std::copy_n(state, size, carried.after + head.head * size);
      }
    }
  }
  return true;
}

bool run_recurrence_gradient(const Recurrence& of, const RecurrenceGradient& gradient, size_t begin, size_t end) {
  const size_t size = of.depth * of.width;
  Kept kept{};
  kept.chunk = std::max<size_t>(1, static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(of.tokens)))));
  kept.chunks = (of.tokens + kept.chunk - 1) / kept.chunk;
  float* memory = own_memory((kept.chunks + kept.chunk + 1) * size + 2 * (kept.chunk + 1) * of.width + 2 * of.depth);
  if (memory == nullptr) {
    return false;
  }
  const auto take = [&](size_t floats) {
    float* const taken = memory;
    memory += floats;
    return taken;
  };
  kept.starts = take(kept.chunks * size);
  kept.states = take(kept.chunk * size);
  kept.dstate = take(size);
  kept.values = take(kept.chunk * of.width);
  kept.wrong = take(kept.chunk * of.width);
  kept.dvalue = take(of.width);
  kept.out = take(of.width);
  kept.factors = take(of.depth);
  kept.logs = take(of.depth);
  for (size_t task = begin; task < end; ++task) {
    const size_t batch = task / gradient.parts, part = task % gradient.parts, each = of.heads / gradient.parts;
    for (size_t token = 0; token < of.tokens; ++token) {
      const size_t row = ((batch * of.tokens + token) * gradient.parts + part) * of.depth;
      std::fill_n(gradient.q + row, of.depth, 0.0f);
      std::fill_n(gradient.k + row, of.depth, 0.0f);
    }
    for (size_t head = part * each; head < (part + 1) * each; ++head) {
      run_gradient(Head{of, batch, head}, gradient, part, kept);
    }
  }
  return true;
}

bool run_causal_conv(const CausalConv& conv, float* out, size_t begin, size_t end) {
  float* const taps = own_memory(conv.window * conv.channels);
  if (taps == nullptr) {
    return false;
  }
  for (size_t tap = 0; tap < conv.window; ++tap) {
    for (size_t channel = 0; channel < conv.channels; ++channel) {
      taps[tap * conv.channels + channel] = conv.weight[channel * conv.window + conv.window - 1 - tap];
    }
  }
  for (size_t task = begin; task < end; ++task) {
    const size_t token = task % conv.tokens, batch = task / conv.tokens;
    const float* const x = conv.x + batch * conv.tokens * conv.channels;
    float* const y = out + task * conv.channels;
    if (conv.bias == nullptr) {
      std::fill_n(y, conv.channels, 0.0f);
    } else {
      std::copy_n(conv.bias, conv.channels, y);
    }
    for (size_t tap = 0; tap < conv.window; ++tap) {
      const float* row = nullptr;
      if (conv.reverse) {
        row = token + tap < conv.tokens ? x + (token + tap) * conv.channels : nullptr;
      } else if (tap <= token) {
        row = x + (token - tap) * conv.channels;
      } else if (conv.before != nullptr && tap <= conv.first + token) {
        row = conv.before + (conv.first + token - tap) % conv.rows * conv.channels;
      }
      if (row != nullptr) {
        add_taps(row, taps + tap * conv.channels, conv.channels, y);
      }
    }
  }
  return true;
}

}  // namespace kernels
}  // namespace zoexport
