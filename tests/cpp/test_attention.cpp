// Attention in tiles and its gradient against sums in double, of any shape, with windows, biases of keys and grouped heads,
// and the same bits however tasks are dealt.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "kernel_results.h"
#include "kernels/attention.h"
#include "kernels/product_variants.h"

using check::noise;
using zoexport::kernels::Attention;
using zoexport::kernels::AttentionGradient;
using zoexport::kernels::AttentionResult;
using zoexport::kernels::product_variants;
using zoexport::kernels::ProductKernels;
using zoexport::kernels::ProductVariant;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  size_t batches, tokens, heads, groups, depth, width, window;
  float scale;
  bool causal, biased;
};

struct Inputs {
  explicit Inputs(const Shape& s)
      : q(noise(1, s.batches * s.tokens * s.heads * s.depth)),
        k(noise(2, s.batches * s.tokens * s.groups * s.depth)),
        v(noise(3, s.batches * s.tokens * s.groups * s.width)),
        dout(noise(4, s.batches * s.tokens * s.heads * s.width)),
        bias(noise(5, s.batches * s.tokens)) {
    // Padding at the end of a row.
    for (size_t i = s.tokens - s.tokens / 4; i < s.tokens; ++i) {
      bias[i] = -3.4e38f;
    }
  }
  std::vector<float> q, k, v, dout, bias;
};

template <typename T>
struct Results {
  explicit Results(const Shape& s, T fill)
      : out(s.batches * s.tokens * s.heads * s.width, fill),
        lse(s.batches * s.heads * s.tokens, fill),
        dq(s.batches * s.tokens * s.heads * s.depth, fill),
        dk(s.batches * s.tokens * s.groups * s.depth, fill),
        dv(s.batches * s.tokens * s.groups * s.width, fill) {}
  std::vector<T> out, lse, dq, dk, dv;
  std::vector<const std::vector<T>*> all() const { return {&out, &lse, &dq, &dk, &dv}; }
};

double dot(const float* a, const float* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += double{a[i]} * double{b[i]};
  }
  return sum;
}

Results<double> expected(const Shape& s, const Inputs& in) {
  Results<double> r(s, 0.0);
  for (size_t b = 0; b < s.batches; ++b) {
    for (size_t h = 0; h < s.heads; ++h) {
      const size_t g = h / (s.heads / s.groups);
      const auto query = [&](size_t t) { return (b * s.tokens + t) * s.heads + h; };
      const auto key = [&](size_t t) { return (b * s.tokens + t) * s.groups + g; };
      for (size_t t = 0; t < s.tokens; ++t) {
        const size_t begin = s.window == 0 || t < s.window ? 0 : t - s.window + 1;
        const size_t end = s.causal ? t + 1 : s.tokens;
        std::vector<double> p;
        for (size_t j = begin; j < end; ++j) {
          p.push_back(double{s.scale} * dot(&in.q[query(t) * s.depth], &in.k[key(j) * s.depth], s.depth) +
                      (s.biased ? double{in.bias[b * s.tokens + j]} : 0.0));
        }
        const double most = *std::max_element(p.begin(), p.end());
        double total = 0;
        for (double& one : p) {
          one = std::exp(one - most);
          total += one;
        }
        r.lse[(b * s.heads + h) * s.tokens + t] = most + std::log(total);
        double delta = 0;
        std::vector<double> dp;
        for (size_t i = 0; i < p.size(); ++i) {
          p[i] /= total;
          dp.push_back(dot(&in.dout[query(t) * s.width], &in.v[key(begin + i) * s.width], s.width));
          delta += p[i] * dp[i];
        }
        for (size_t i = 0; i < p.size(); ++i) {
          const size_t j = begin + i;
          for (size_t e = 0; e < s.width; ++e) {
            r.out[query(t) * s.width + e] += p[i] * double{in.v[key(j) * s.width + e]};
            r.dv[key(j) * s.width + e] += p[i] * double{in.dout[query(t) * s.width + e]};
          }
          const double ds = double{s.scale} * p[i] * (dp[i] - delta);
          for (size_t d = 0; d < s.depth; ++d) {
            r.dq[query(t) * s.depth + d] += ds * double{in.k[key(j) * s.depth + d]};
            r.dk[key(j) * s.depth + d] += ds * double{in.q[query(t) * s.depth + d]};
          }
        }
      }
    }
  }
  return r;
}

// `pieces` ranges of tasks, the last one first.
template <typename Run>
void deal(size_t count, size_t pieces, const Run& run) {
  for (size_t piece = pieces; piece-- > 0;) {
    CHECK(run(piece * count / pieces, (piece + 1) * count / pieces));
  }
}

Results<float> computed(const Shape& s, const Inputs& in, size_t pieces, const ProductKernels& kernels) {
  Results<float> r(s, kNan);
  const Attention attention{in.q.data(), in.k.data(), in.v.data(), s.biased ? in.bias.data() : nullptr,
                            s.batches,   s.tokens,    s.heads,     s.groups,
                            s.depth,     s.width,     s.scale,     s.causal,
                            s.window};
  deal(attention_tasks(attention).count, pieces, [&](size_t begin, size_t end) {
    return run_attention(attention, {r.out.data(), r.lse.data()}, begin, end, kernels);
  });
  const AttentionGradient gradient{r.out.data(), r.lse.data(), in.dout.data(), r.dq.data(), r.dk.data(), r.dv.data()};
  for (size_t round = 0; round < gradient_rounds(attention); ++round) {
    deal(gradient_tasks(attention, round).count, pieces,
         [&](size_t begin, size_t end) { return run_gradient(attention, gradient, round, begin, end, kernels); });
  }
  return r;
}

void equals(const std::vector<float>& found, const std::vector<double>& wanted) {
  double most = 0;
  for (const double one : wanted) {
    most = std::max(most, std::fabs(one));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    CHECK(std::fabs(double{found[i]} - wanted[i]) <= 4e-6 * (1 + most));
  }
}

const Shape kShapes[] = {
    {1, 300, 6, 2, 64, 64, 0, 0.125f, true, false}, {2, 33, 4, 2, 16, 16, 0, 0.25f, true, false},
    {1, 20, 3, 3, 7, 5, 0, 0.5f, true, false},      {2, 140, 2, 1, 19, 33, 9, 0.3f, true, false},
    {1, 1, 5, 5, 1, 3, 0, 1.0f, true, false},       {1, 257, 2, 2, 80, 80, 64, 0.1f, true, false},
    {3, 64, 2, 2, 17, 36, 1, 0.2f, true, false},    {1, 150, 2, 1, 256, 130, 100, 0.06f, true, false},
    {2, 130, 4, 2, 24, 40, 0, 0.2f, false, false},  {2, 99, 3, 1, 64, 63, 0, 0.12f, false, true},
    {1, 200, 2, 2, 12, 12, 0, -0.3f, true, true},   {1, 65, 1, 1, 33, 1, 300, 0.2f, true, true},
};

void any_shape_however_dealt(const ProductKernels& kernels) {
  for (const Shape& shape : kShapes) {
    const Inputs inputs(shape);
    const Results<double> wanted = expected(shape, inputs);
    const Results<float> whole = computed(shape, inputs, 1, kernels);
    for (size_t i = 0; i < wanted.all().size(); ++i) {
      equals(*whole.all()[i], *wanted.all()[i]);
    }
    for (const size_t pieces : {size_t{2}, size_t{7}}) {
      const Results<float> dealt = computed(shape, inputs, pieces, kernels);
      for (size_t i = 0; i < dealt.all().size(); ++i) {
        CHECK(std::memcmp(dealt.all()[i]->data(), whole.all()[i]->data(), whole.all()[i]->size() * sizeof(float)) == 0);
      }
    }
  }
}

void large_scores_and_what_is_no_number(const ProductKernels& kernels) {
  const Shape shape{1, 70, 2, 1, 16, 16, 0, 40.0f, true, false};
  Inputs inputs(shape);
  const Results<double> wanted = expected(shape, inputs);
  const Results<float> found = computed(shape, inputs, 1, kernels);
  for (size_t i = 0; i < found.out.size(); ++i) {
    CHECK(std::fabs(double{found.out[i]} - wanted.out[i]) <= 1e-3 * (1 + std::fabs(wanted.out[i])));
  }
  // Of the last token: of its own results alone there is none.
  inputs.q[(shape.tokens - 1) * shape.heads * shape.depth] = kNan;
  const Results<float> broken = computed(shape, inputs, 1, kernels);
  const size_t last = (shape.tokens - 1) * shape.heads * shape.width;
  for (size_t i = 0; i < broken.out.size(); ++i) {
    CHECK(std::isnan(broken.out[i]) == (i >= last && i < last + shape.width));
  }
  CHECK(std::isnan(broken.dk[0]));
}

// Those with a fused multiply-add.
void variants_give_the_same_bits() {
  for (const Shape& shape : kShapes) {
    const Inputs inputs(shape);
    std::vector<Results<float>> results;
    for (const ProductVariant& variant : product_variants()) {
      if (variant.runs_here && variant.kernels != &zoexport::kernels::products_portable) {
        results.push_back(computed(shape, inputs, 1, *variant.kernels));
      }
    }
    for (const Results<float>& other : results) {
      for (size_t i = 0; i < other.all().size(); ++i) {
        CHECK(std::memcmp(other.all()[i]->data(), results[0].all()[i]->data(),
                          other.all()[i]->size() * sizeof(float)) == 0);
      }
    }
  }
}

void tasks_are_worth_a_thread_where_work_is() {
  Attention attention{};
  attention.batches = 1;
  attention.heads = attention.groups = 2;
  attention.depth = attention.width = 64;
  attention.tokens = 4;
  CHECK(attention_tasks(attention).grain > attention_tasks(attention).count);
  attention.tokens = 2048;
  CHECK(attention_tasks(attention).grain == 1);
  attention.causal = true;
  attention.window = 1;
  CHECK(gradient_rounds(attention) == 1);
  attention.window = 2;
  CHECK(gradient_rounds(attention) == 2);
  attention.tokens = 0;
  CHECK(attention_tasks(attention).count == 0 && gradient_rounds(attention) == 0);
}

}  // namespace

int main() {
  for (const ProductVariant& variant : product_variants()) {
    if (variant.runs_here) {
      any_shape_however_dealt(*variant.kernels);
      large_scores_and_what_is_no_number(*variant.kernels);
    }
  }
  variants_give_the_same_bits();
  tasks_are_worth_a_thread_where_work_is();
  return check::result();
}
