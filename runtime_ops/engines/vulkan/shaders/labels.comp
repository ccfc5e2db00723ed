// Log-probabilities of labels, whether each is the first of its row's greatest logits, and the gradient of their weighted sum
// by the logits (runtime_ops/kernels/label_logprobs.h). A workgroup has a row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "bindings.glsl"
#include "math.glsl"

const uint THREADS = 128;
layout(local_size_x = 128) in;
layout(constant_id = 0) const bool GRADIENT = false;
layout(constant_id = 1) const bool HALF_GRADIENT = false;

layout(push_constant) uniform Sizes {
  uint entries, vocabulary;
  uint logits, tokens, weights, logprobs, is_argmax, gradient;
}
of;

shared float partial[THREADS];
shared uint places[THREADS];

void main() {
  const uint thread = gl_LocalInvocationIndex, row = gl_WorkGroupID.x;
  const uint logits = of.logits + row * of.vocabulary;
  const uint label = pool_words[of.tokens + 2u * (row % of.entries)];  // the low word of an int64
  float most = uintBitsToFloat(0xFF800000u);
  uint place = 0xFFFFFFFFu;
  bool unordered = false;
  for (uint v = thread; v < of.vocabulary; v += THREADS) {
    const float logit = pool[logits + v];
    unordered = unordered || isnan(logit) || logit == uintBitsToFloat(0x7F800000u);
    if (logit > most || place == 0xFFFFFFFFu) {
      most = logit;
      place = v;
    }
  }
  partial[thread] = unordered ? uintBitsToFloat(0x7FC00000u) : most;
  places[thread] = place;
  for (uint half_threads = THREADS / 2u; half_threads > 0u; half_threads /= 2u) {
    barrier();
    if (thread < half_threads) {
      const float own = partial[thread], other = partial[thread + half_threads];
      const uint at = places[thread + half_threads];
      if (!isnan(own) && (isnan(other) || other > own || (other == own && at < places[thread]))) {
        partial[thread] = other;
        places[thread] = at;
      }
    }
  }
  barrier();
  most = partial[0];
  place = places[0];
  barrier();
  // The label's own share is not in the sum: 1 - softmax would lose the digits of a label that is all but certain.
  float others = 0.0;
  for (uint v = thread; v < of.vocabulary; v += THREADS) {
    others += v == label ? 0.0 : exp_of(pool[logits + v] - most);
  }
  partial[thread] = others;
  for (uint half_threads = THREADS / 2u; half_threads > 0u; half_threads /= 2u) {
    barrier();
    if (thread < half_threads) {
      partial[thread] += partial[thread + half_threads];
    }
  }
  barrier();
  others = partial[0];
  const float own = pool[logits + label] - most;
  const float total = others + exp_of(own);
  if (thread == 0u) {
    pool[of.logprobs + row] = own - log_of(total);
    pool[of.is_argmax + row] = place == label && !isnan(most) ? 1.0 : 0.0;
  }
  if (GRADIENT) {
    const float weight = pool[of.weights + row];
    for (uint v = thread; v < of.vocabulary; v += THREADS) {
      const float share = v == label ? others : -exp_of(pool[logits + v] - most);
      put(HALF_GRADIENT, of.gradient + row * of.vocabulary + v, weight * (share / total));
    }
  }
}
