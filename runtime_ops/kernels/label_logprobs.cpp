#include "label_logprobs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "each_width.h"

namespace zoexport {
namespace kernels {
namespace {

constexpr size_t kLanes = 16;
// Float lanes are added up in double after this many elements, so that the error does not grow with V.
constexpr size_t kRun = 512;

// exp(x) for x <= 0 within 2e-7 relative, branch-free so that loops vectorize; NaN stays NaN. Below -87 it
// gives exp(-87), which no sum that holds exp(0) = 1 can feel.
inline float exp_nonpositive(float x) {
  // On bits, as a float comparison (which may trap) keeps GCC from vectorizing: the floats from -87 to -infinity
  // are the integers 0xC2AE0000 to 0xFF800000, and NaNs lie beyond.
  uint32_t in;
  std::memcpy(&in, &x, sizeof(in));
  const uint32_t clamp = 0u - static_cast<uint32_t>(in - 0xC2AE0000u <= 0xFF800000u - 0xC2AE0000u);
  in = (in & ~clamp) | (0xC2AE0000u & clamp);
  std::memcpy(&x, &in, sizeof(x));
  // Adding 1.5 * 2^23 rounds to an integer, which then sits in the low bits.
  const float shifted = x * 0x1.715476p0f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
  float p = 0x1.a0d2cep-13f;
  p = p * r + 0x1.6e879cp-10f;
  p = p * r + 0x1.111210p-7f;
  p = p * r + 0x1.555382p-5f;
  p = p * r + 0x1.555554p-3f;
  p = p * r + 0.5f;
  p = (p * (r * r) + r) + 1.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 23) + 0x3F800000u;  // 2^n
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return p * power;
}

ZO_EACH_WIDTH float greatest(const float* row, size_t V) {
  float lane[kLanes];
  for (float& value : lane) {
    value = -std::numeric_limits<float>::infinity();
  }
  size_t i = 0;
  for (; i + kLanes <= V; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lane[j] = row[i + j] > lane[j] ? row[i + j] : lane[j];
    }
  }
  float most = -std::numeric_limits<float>::infinity();
  for (; i < V; ++i) {
    most = row[i] > most ? row[i] : most;
  }
  for (float value : lane) {
    most = value > most ? value : most;
  }
  return most;
}

ZO_EACH_WIDTH double sum_exp(const float* row, size_t V, float most) {
  double total = 0.0;
  for (size_t begin = 0; begin < V; begin += kRun) {
    const size_t count = std::min(kRun, V - begin);
    float value[kRun] = {};
    for (size_t i = 0; i < count; ++i) {
      value[i] = exp_nonpositive(row[begin + i] - most);
    }
    float lane[kLanes] = {};
    for (size_t i = 0; i < kRun; i += kLanes) {
      for (size_t j = 0; j < kLanes; ++j) {
        lane[j] = lane[j] + value[i + j];
      }
    }
    for (float part : lane) {
      total += static_cast<double>(part);
    }
  }
  return total;
}

// out = factor * exp(row - most)
ZO_EACH_WIDTH void scaled_exp(const float* row, size_t V, float most, float factor, float* out) {
  for (size_t i = 0; i < V; ++i) {
    out[i] = factor * exp_nonpositive(row[i] - most);
  }
}

ZO_EACH_WIDTH void capped(const float* row, size_t V, float cap, float* out) {
  for (size_t i = 0; i < V; ++i) {
    const float x = row[i] / cap;
    const float e = exp_nonpositive(-2.0f * std::fabs(x));
    out[i] = cap * std::copysign((1.0f - e) / (1.0f + e), x);
  }
}

struct Label {
  float most;  // the greatest logit
  double sum;  // of exp(logits - most)
  double logprob;
  float is_argmax;
};

Label label_of(const float* row, size_t V, size_t token) {
  Label label;
  label.most = greatest(row, V);
  label.sum = sum_exp(row, V, label.most);
  label.logprob = (static_cast<double>(row[token]) - static_cast<double>(label.most)) - std::log(label.sum);
  label.is_argmax = is_first_greatest(row, token, label.most) ? 1.0f : 0.0f;
  return label;
}

}  // namespace

LogitSum logit_sum(const float* logits, size_t count) {
  const float most = greatest(logits, count);
  if (most == -std::numeric_limits<float>::infinity()) {
    const bool none = std::all_of(logits, logits + count, [&](float logit) { return logit == most; });
    return {most, none ? 0.0 : std::numeric_limits<double>::quiet_NaN()};
  }
  return {most, sum_exp(logits, count, most)};
}

bool is_first_greatest(const float* logits, size_t label, float most) {
  return logits[label] == most && std::find(logits, logits + label, most) == logits + label;
}

void cap_logits(const float* logits, size_t count, float cap, float* out) { capped(logits, count, cap, out); }

int64_t find_bad_label(const int64_t* label_tokens, size_t M, size_t V) {
  for (size_t i = 0; i < M; ++i) {
    if (label_tokens[i] < 0 || static_cast<uint64_t>(label_tokens[i]) >= V) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

void label_logprobs_rows(const float* logits, const int64_t* label_tokens, size_t M, size_t V, size_t begin, size_t end,
                         float* logprobs, float* is_argmax) {
  for (size_t r = begin; r < end; ++r) {
    const Label label = label_of(logits + r * V, V, static_cast<size_t>(label_tokens[r % M]));
    logprobs[r] = static_cast<float>(label.logprob);
    is_argmax[r] = label.is_argmax;
  }
}

void label_gradient_rows(const float* logits, const int64_t* label_tokens, const float* label_weights, size_t V,
                         size_t begin, size_t end, float* logprobs, float* is_argmax, float* gradient) {
  for (size_t m = begin; m < end; ++m) {
    const float* row = logits + m * V;
    const size_t token = static_cast<size_t>(label_tokens[m]);
    const Label label = label_of(row, V, token);
    logprobs[m] = static_cast<float>(label.logprob);
    is_argmax[m] = label.is_argmax;
    const double weight = static_cast<double>(label_weights[m]);
    scaled_exp(row, V, label.most, static_cast<float>(-weight / label.sum), gradient + m * V);
    // 1 - softmax, of the log-probability that is reported.
    gradient[m * V + token] = static_cast<float>(weight * -std::expm1(label.logprob));
  }
}

bool label_logprobs(const float* logits, const int64_t* label_tokens, size_t C, size_t M, size_t V, float* logprobs,
                    float* is_argmax) {
  if (V == 0 || find_bad_label(label_tokens, M, V) >= 0) {
    return false;
  }
  label_logprobs_rows(logits, label_tokens, M, V, 0, C * M, logprobs, is_argmax);
  return true;
}

}  // namespace kernels
}  // namespace zoexport
