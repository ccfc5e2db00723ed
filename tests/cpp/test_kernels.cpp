// The scalar kernels against straightforward double-precision or element-by-element versions.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "kernel_results.h"
#include "kernels/int4.h"
#include "kernels/label_logprobs.h"
#include "kernels/zeroth_order.h"
#include "rng/normal.h"

using namespace zoexport::kernels;
using check::noise;
using zoexport::rng::normals;
using zoexport::rng::signs;
using zoexport::rng::Stream;
using zoexport::rng::words;

namespace {

bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

void update_is_the_sum_in_order() {
  for (const size_t n : {1u, 3u, 255u, 256u, 257u, 1000u}) {
    const std::vector<float> master = noise(1, n);
    const std::vector<float> g = {0.5f, -1.25f, 3.0f};
    std::vector<float> out(n);
    CHECK(zo_update(master.data(), n, g.data(), g.size(), 1e-2f, 7, 12, 5, out.data()));
    const float scale = 1e-2f / 3.0f;
    for (size_t i = 0; i < n; ++i) {
      float z[3];
      for (uint32_t j = 0; j < 3; ++j) {
        normals(Stream{7, 5, j, 11}, i, 1, &z[j]);
      }
      float sum = g[0] * z[0];
      sum = sum + g[1] * z[1];
      sum = sum + g[2] * z[2];
      CHECK(out[i] == master[i] - scale * sum);
    }
    std::vector<float> in_place = master;
    CHECK(zo_update(in_place.data(), n, g.data(), g.size(), 1e-2f, 7, 12, 5, in_place.data()));
    CHECK(same_bits(in_place.data(), out.data(), n));
  }
}

void update_without_gradients_copies() {
  std::vector<float> master = noise(1, 10);
  master[0] = -0.0f;
  master[1] = std::numeric_limits<float>::infinity();
  const float g[2] = {0.0f, -0.0f};
  std::vector<float> out(10, 5.0f);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(zo_update(master.data(), 10, g, 2, nan, 7, 0, 5, out.data()));
  CHECK(same_bits(out.data(), master.data(), 10));
}

void update_refuses() {
  const std::vector<float> master = noise(1, 4);
  std::vector<float> out(4, 5.0f);
  const float g[2] = {0.0f, 1.0f};
  CHECK(!zo_update(master.data(), 4, g, 2, 1.0f, 7, 0, 5, out.data()));
  CHECK(!zo_update(master.data(), 4, g, 0, 1.0f, 7, 3, 5, out.data()));
  CHECK(out == std::vector<float>(4, 5.0f));
}

void perturbations() {
  const size_t n = 515;
  const uint32_t q = 3;
  const std::vector<float> master = noise(2, n);
  std::vector<float> out(2 * q * n);
  zo_perturb(master.data(), n, 1e-3f, 1234567890123u, 8, 6, q, out.data());
  for (uint32_t query = 0; query < q; ++query) {
    std::vector<float> z(n);
    normals(Stream{1234567890123u, 6, query, 8}, 0, n, z.data());
    for (size_t i = 0; i < n; ++i) {
      const float move = 1e-3f * z[i];
      CHECK(out[(2 * query) * n + i] == master[i] + move);
      CHECK(out[(2 * query + 1) * n + i] == master[i] - move);
    }
    std::vector<float> one(n);
    for (const float sign : {1.0f, -1.0f}) {
      zo_perturb_one(master.data(), n, sign * 1e-3f, 1234567890123u, 8, query, 6, one.data());
      CHECK(same_bits(one.data(), &out[(2 * query + (sign < 0 ? 1 : 0)) * n], n));
    }
  }
}

void perturbations_to_one_side() {
  const size_t n = 515;
  const uint32_t q = 3;
  std::vector<float> master = noise(2, n);
  master[1] = -0.0f;
  std::vector<float> out((q + 1) * n);
  zo_perturb_forward(master.data(), n, 1e-3f, 1234567890123u, 8, 6, q, out.data(), zoexport::rng::sign_blocks);
  CHECK(same_bits(out.data(), master.data(), n));
  for (uint32_t query = 0; query < q; ++query) {
    std::vector<float> u(n);
    signs(Stream{1234567890123u, 6, query, 8}, 0, n, u.data());
    for (size_t i = 0; i < n; ++i) {
      CHECK(out[(query + 1) * n + i] == (u[i] > 0 ? master[i] + 1e-3f : master[i] - 1e-3f));
    }
  }
}

void logprobs_of(size_t C, size_t M, size_t V, float scale, float shift) {
  std::vector<float> logits = noise(3, C * M * V);
  for (float& value : logits) {
    value = value * scale + shift;
  }
  std::vector<int64_t> labels(M);
  for (size_t m = 0; m < M; ++m) {
    labels[m] = static_cast<int64_t>((m * 7919) % V);
  }
  labels[M - 1] = static_cast<int64_t>(V - 1);
  std::vector<float> logprobs(C * M), most(C * M);
  CHECK(label_logprobs(logits.data(), labels.data(), C, M, V, logprobs.data(), most.data()));
  for (size_t r = 0; r < C * M; ++r) {
    const float* row = &logits[r * V];
    const size_t label = static_cast<size_t>(labels[r % M]);
    size_t best = 0;
    for (size_t v = 1; v < V; ++v) {
      best = row[v] > row[best] ? v : best;
    }
    double sum = 0.0;
    for (size_t v = 0; v < V; ++v) {
      sum += std::exp(static_cast<double>(row[v]) - static_cast<double>(row[best]));
    }
    const double expected = static_cast<double>(row[label]) - static_cast<double>(row[best]) - std::log(sum);
    CHECK(std::abs(static_cast<double>(logprobs[r]) - expected) <= 1e-6 * (1.0 + std::abs(expected)));
    CHECK(most[r] == (best == label ? 1.0f : 0.0f));
  }
}

void logprobs_special() {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> logits(40, 1.0f);
  int64_t label = 17;
  float logprob = 0.0f, most = 0.0f;
  const auto run = [&] { return label_logprobs(logits.data(), &label, 1, 1, logits.size(), &logprob, &most); };
  CHECK(run() && most == 0.0f);  // a tie goes to the lowest index
  CHECK(std::abs(logprob + std::log(40.0f)) < 1e-6f);
  label = 0;
  CHECK(run() && most == 1.0f);
  logits[33] = -inf;
  CHECK(run() && std::abs(logprob + std::log(39.0f)) < 1e-6f);
  logits[33] = -3e38f;
  CHECK(run() && std::abs(logprob + std::log(39.0f)) < 1e-6f);
  label = 33;
  CHECK(run() && logprob < -2e38f && most == 0.0f);
  for (const float bad : {nan, -nan, inf}) {
    for (const size_t at : {size_t{3}, size_t{39}}) {
      logits.assign(40, 1.0f);
      logits[at] = bad;
      CHECK(run() && std::isnan(logprob));
    }
  }
  for (const int64_t outside : {int64_t{-1}, int64_t{40}, INT64_MIN, INT64_MAX}) {
    label = outside;
    logprob = 123.0f;
    CHECK(!run() && logprob == 123.0f);
  }
  label = 0;
  CHECK(!label_logprobs(logits.data(), &label, 1, 1, 0, &logprob, &most));
}

void gradient_of(size_t M, size_t V, float scale) {
  std::vector<float> logits = noise(3, M * V);
  for (float& value : logits) {
    value = value * scale;
  }
  const std::vector<float> weights = noise(6, M);
  std::vector<int64_t> labels(M);
  for (size_t m = 0; m < M; ++m) {
    labels[m] = static_cast<int64_t>((m * 7919) % V);
  }
  std::vector<float> logprobs(M), most(M), plain(M), plain_most(M), gradient(M * V);
  CHECK(label_logprobs(logits.data(), labels.data(), 1, M, V, plain.data(), plain_most.data()));
  // Rows may be dealt to threads.
  for (size_t m = 0; m < M; m += 2) {
    label_gradient_rows(logits.data(), labels.data(), weights.data(), V, m, std::min(M, m + 2), logprobs.data(),
                        most.data(), gradient.data());
  }
  CHECK(same_bits(logprobs.data(), plain.data(), M) && same_bits(most.data(), plain_most.data(), M));
  for (size_t m = 0; m < M; ++m) {
    double sum = 0.0;
    for (size_t v = 0; v < V; ++v) {
      sum += std::exp(static_cast<double>(logits[m * V + v]));
    }
    for (size_t v = 0; v < V; ++v) {
      const double softmax = std::exp(static_cast<double>(logits[m * V + v])) / sum;
      const double one = static_cast<int64_t>(v) == labels[m] ? 1.0 : 0.0;
      const double weight = static_cast<double>(weights[m]);
      CHECK(std::abs(static_cast<double>(gradient[m * V + v]) - weight * (one - softmax)) <= 1e-6 * std::abs(weight));
    }
  }
}

void a_row_that_diverged_has_no_gradient() {
  const float inf = std::numeric_limits<float>::infinity();
  const float weight = 0.5f;
  const int64_t label = 2;
  float logprob, most;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), inf}) {
    std::vector<float> logits(40, 1.0f), gradient(40);
    logits[33] = bad;
    label_gradient_rows(logits.data(), &label, &weight, 40, 0, 1, &logprob, &most, gradient.data());
    for (const float value : gradient) {
      CHECK(std::isnan(value));
    }
  }
  std::vector<float> logits(40, 1.0f), gradient(40);
  logits[33] = -inf;  // a token that is masked out
  label_gradient_rows(logits.data(), &label, &weight, 40, 0, 1, &logprob, &most, gradient.data());
  CHECK(std::abs(gradient[33]) < 1e-30f && std::abs(gradient[0] + 0.5f / 39.0f) < 1e-7f);
}

struct Packed {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  Int4Matrix matrix;
};

Packed packed(size_t N, size_t K, size_t G) {
  Packed p;
  std::vector<uint32_t> word(N * K / 2 + N * K / G);
  words(Stream{5, 0, 0, 0}, 0, word.size(), word.data());
  for (size_t i = 0; i < N * K / 2; ++i) {
    p.codes.push_back(static_cast<uint8_t>(word[i] >> 24));
  }
  for (size_t i = 0; i < N * K / G; ++i) {
    p.scales.push_back(static_cast<uint16_t>(0x3C00u + (word[N * K / 2 + i] >> 24)));
  }
  p.matrix = Int4Matrix{p.codes.data(), p.scales.data(), N, K, G};
  return p;
}

// The packing as docs/formats.md states it, one element at a time.
float element(const Packed& p, size_t n, size_t k) {
  const Int4Matrix& m = p.matrix;
  const uint32_t byte = p.codes[n * (m.K / 2) + k / 2];
  const int q = static_cast<int>((byte >> (4 * (k % 2))) & 15u) - 8;
  const uint32_t bits = static_cast<uint32_t>(p.scales[n * (m.K / m.group_size) + k / m.group_size]) << 16;
  return static_cast<float>(q) * zoexport::rng::detail::as_float(bits);
}

void int4_layers(size_t N, size_t K, size_t G, size_t T, bool with_bias) {
  const Packed p = packed(N, K, G);
  std::vector<float> row(K);
  for (size_t n = 0; n < N; ++n) {
    int4_dequantize_row(p.matrix, n, row.data());
    for (size_t k = 0; k < K; ++k) {
      CHECK(row[k] == element(p, n, k));
    }
  }
  const std::vector<float> x = noise(4, T * K);
  const std::vector<float> bias = noise(5, N);
  std::vector<float> y(T * N, 7.0f);
  const float* added = with_bias ? bias.data() : nullptr;
  CHECK(linear_int4(x.data(), T, p.matrix, added, y.data()));
  for (size_t t = 0; t < T; ++t) {
    for (size_t n = 0; n < N; ++n) {
      double sum = with_bias ? static_cast<double>(bias[n]) : 0.0;
      double size = std::abs(sum);
      for (size_t k = 0; k < K; ++k) {
        const double term = static_cast<double>(x[t * K + k]) * static_cast<double>(element(p, n, k));
        sum += term;
        size += std::abs(term);
      }
      CHECK(std::abs(static_cast<double>(y[t * N + n]) - sum) <= 2e-6 * size);
    }
    // A row does not depend on the others in the call.
    std::vector<float> alone(N);
    CHECK(linear_int4(&x[t * K], 1, p.matrix, added, alone.data()));
    CHECK(same_bits(alone.data(), &y[t * N], N));
  }
  if (N > 4) {
    std::vector<float> split(T * N);
    linear_int4_columns(x.data(), T, p.matrix, added, 0, 4, split.data());
    linear_int4_columns(x.data(), T, p.matrix, added, 4, N, split.data());
    CHECK(same_bits(split.data(), y.data(), T * N));
  }
}

void int4_refuses() {
  Packed p = packed(3, 64, 32);
  std::vector<float> x(64), y(3, 7.0f), out(64, 7.0f);
  for (const size_t group : {0u, 16u, 48u, 128u}) {
    p.matrix.group_size = group;
    CHECK(!linear_int4(x.data(), 1, p.matrix, nullptr, y.data()));
  }
  p.matrix.group_size = 32;
  CHECK(y == std::vector<float>(3, 7.0f));
  for (const int64_t index : {int64_t{-1}, int64_t{3}, INT64_MAX}) {
    CHECK(!embedding_int4(p.matrix, &index, 1, out.data()));
  }
  CHECK(out == std::vector<float>(64, 7.0f));
  const int64_t good = 2;
  CHECK(embedding_int4(p.matrix, &good, 1, out.data()));
  CHECK(out[5] == element(p, 2, 5));
}

}  // namespace

int main() {
  update_is_the_sum_in_order();
  update_without_gradients_copies();
  update_refuses();
  perturbations();
  perturbations_to_one_side();
  logprobs_of(2, 3, 1, 1.0f, 0.0f);
  logprobs_of(2, 5, 15, 3.0f, 1.0f);
  logprobs_of(1, 4, 513, 10.0f, -40.0f);
  logprobs_of(2, 3, 49152, 4.0f, 100.0f);
  logprobs_of(1, 1, 262144, 0.01f, 0.0f);
  logprobs_special();
  gradient_of(1, 1, 1.0f);
  gradient_of(5, 15, 3.0f);
  gradient_of(3, 49152, 4.0f);
  a_row_that_diverged_has_no_gradient();
  int4_layers(1, 32, 32, 1, false);
  int4_layers(7, 288, 32, 3, true);
  int4_layers(8, 512, 128, 2, false);
  int4_layers(6, 576, 64, 5, true);
  int4_refuses();
  return check::result();
}
