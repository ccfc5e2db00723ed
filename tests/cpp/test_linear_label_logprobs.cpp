// Log-probabilities over logits that nobody keeps against those of the logits in whole: the same logits, bit by bit, as
// products do not depend on their block. Ties, infinities and NaNs across blocks; tasks dealt in any way.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "check.h"
#include "kernel_results.h"
#include "kernels/linear_label_logprobs.h"
#include "kernels/rounded.h"
#include "rng/normal.h"

using namespace zoexport::kernels;
using check::noise;
using zoexport::rng::Stream;
using zoexport::rng::words;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class Kind { kFloat, kInt4, kRounded };

// A layer of random numbers, and labels that are dealt over all columns.
struct Layer {
  size_t rows, M, columns, depth;
  Kind kind;
  std::vector<float> x, weight, bias;
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  std::vector<int64_t> labels;
  float scale = 1.0f, cap = 0.0f;

  Layer(size_t C, size_t M_, size_t V, size_t K, Kind kind_)
      : rows(C * M_), M(M_), columns(V), depth(K), kind(kind_), x(noise(1, C * M_ * K)), bias(noise(3, V)) {
    if (kind == Kind::kFloat) {
      weight = noise(2, V * K);
    } else {
      std::vector<uint32_t> word(V * K / 2 + V * K / 32);
      words(Stream{5, 0, 0, 0}, 0, word.size(), word.data());
      for (size_t i = 0; i < V * K / 2; ++i) {
        codes.push_back(static_cast<uint8_t>(word[i] >> 24));
      }
      for (size_t i = V * K / 2; i < word.size(); ++i) {
        scales.push_back(static_cast<uint16_t>(0x3D00u + (word[i] >> 24)));
      }
    }
    for (size_t m = 0; m < M; ++m) {
      labels.push_back(static_cast<int64_t>((m * 7919 + V - 1) % V));
    }
  }

  Int4Matrix packed() const { return {codes.data(), scales.data(), columns, depth, 32}; }

  // (rows, columns), from one product of everything.
  std::vector<float> logits() const {
    std::vector<float> y(rows * columns);
    const auto run = [](const auto& product) { CHECK(run_tasks(product, 0, tasks_of(product).count)); };
    if (kind == Kind::kFloat) {
      Product product = matmul(x.data(), weight.data(), 1, rows, columns, depth, false, true, y.data());
      product.bias = bias.data();
      run(product);
    } else if (kind == Kind::kInt4) {
      run(linear(x.data(), rows, packed(), bias.data(), y.data()));
    } else {
      std::vector<float> memory(rounded_floats(rows, depth));
      const RoundedRows rounded = rounded_in(memory.data(), rows, depth);
      run(RoundRows{x.data(), rounded});
      run(RoundedLinear{rounded, packed(), bias.data(), y.data()});
    }
    for (float& logit : y) {
      logit = scale == 1.0f ? logit : logit * scale;
      logit = cap > 0.0f ? cap * std::tanh(logit / cap) : logit;
    }
    return y;
  }
};

struct Scores {
  std::vector<float> logprobs, is_argmax;
};

// Tasks in ranges of `step`, the last ones first.
Scores fused(const Layer& layer, size_t step) {
  const size_t blocks = column_blocks(layer.columns);
  std::vector<LogitSum> parts(blocks * layer.rows);
  std::vector<float> rounded(layer.kind == Kind::kRounded ? rounded_floats(layer.rows, layer.depth) : 0);
  std::vector<float> label_logits(layer.rows);
  const auto leads = std::make_unique<bool[]>(layer.rows);
  LabelProduct product{
      layer.x.data(),      layer.rows,          layer.depth,       rounded.empty() ? nullptr : rounded.data(),
      layer.packed(),      layer.columns,       layer.bias.data(), layer.scale,
      layer.cap,           layer.labels.data(), layer.M,           parts.data(),
      label_logits.data(), leads.get()};
  if (layer.kind == Kind::kFloat) {
    product.weight = FloatMatrix{layer.weight.data(), layer.depth};
  }
  const auto run = [step](const auto& all) {
    for (size_t end = tasks_of(all).count; end > 0; end -= std::min(end, step)) {
      CHECK(run_tasks(all, end - std::min(end, step), end));
    }
  };
  run(RoundLabelRows{product});
  run(product);
  Scores found{std::vector<float>(layer.rows), std::vector<float>(layer.rows)};
  finish_label_rows(product, found.logprobs.data(), found.is_argmax.data());
  return found;
}

// Those of the logits in whole.
Scores of_logits(const Layer& layer) {
  const std::vector<float> logits = layer.logits();
  Scores found{std::vector<float>(layer.rows), std::vector<float>(layer.rows)};
  CHECK(label_logprobs(logits.data(), layer.labels.data(), layer.rows / layer.M, layer.M, layer.columns,
                       found.logprobs.data(), found.is_argmax.data()));
  return found;
}

void same_scores(const Layer& layer) {
  const Scores expected = of_logits(layer), found = fused(layer, 1), again = fused(layer, 3);
  CHECK(std::memcmp(found.logprobs.data(), again.logprobs.data(), layer.rows * sizeof(float)) == 0);
  for (size_t r = 0; r < layer.rows; ++r) {
    const float difference = std::fabs(found.logprobs[r] - expected.logprobs[r]);
    CHECK(difference <=
          2e-6f * (1.0f + std::fabs(expected.logprobs[r])) + (layer.cap > 0.0f ? 1e-6f * layer.cap : 0.0f));
    CHECK(found.is_argmax[r] == expected.is_argmax[r] && again.is_argmax[r] == found.is_argmax[r]);
  }
}

void shapes() {
  for (const Kind kind : {Kind::kFloat, Kind::kInt4, Kind::kRounded}) {
    for (const size_t V : {size_t{1}, size_t{7}, size_t{1023}, size_t{1024}, size_t{1025}, size_t{2500}}) {
      same_scores(Layer(2, 1, V, 32, kind));
      same_scores(Layer(1, 5, V, 96, kind));
    }
    same_scores(Layer(1, 64, 1100, 64, kind));
    same_scores(Layer(3, 43, 1100, 64, kind));
    Layer layer(2, 3, 1500, 64, kind);
    layer.scale = 0.125f;
    same_scores(layer);
    layer.cap = 3.0f;
    same_scores(layer);
  }
}

// Logits are the bias alone.
void biases_alone(const std::vector<std::pair<size_t, float>>& biases, size_t label, bool first, bool finite) {
  Layer layer(1, 1, 3000, 32, Kind::kFloat);
  std::fill(layer.x.begin(), layer.x.end(), 0.0f);
  std::fill(layer.bias.begin(), layer.bias.end(), 1.0f);
  for (const auto& [column, value] : biases) {
    layer.bias[column] = value;
  }
  layer.labels[0] = static_cast<int64_t>(label);
  const Scores found = fused(layer, 1);
  CHECK(std::isfinite(found.logprobs[0]) == finite);
  CHECK(!finite || (found.is_argmax[0] == 1.0f) == first);
  if (finite) {
    same_scores(layer);
  }
}

void across_blocks() {
  biases_alone({}, 0, true, true);
  biases_alone({}, 1024, false, true);  // a tie goes to the lowest index
  biases_alone({{5, 2.0f}, {2999, 2.0f}}, 2999, false, true);
  biases_alone({{5, 2.0f}, {2999, 2.0f}}, 5, true, true);
  biases_alone({{2000, 3.0f}}, 2000, true, true);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    biases_alone({{5, bad}}, 2999, false, false);
    biases_alone({{2999, bad}}, 5, false, false);
  }
  // Blocks of masked tokens alone, before and behind the others.
  for (const size_t begin : {size_t{0}, size_t{2048}}) {
    std::vector<std::pair<size_t, float>> masked;
    for (size_t column = begin; column < std::min<size_t>(begin + 1024, 3000); ++column) {
      masked.emplace_back(column, -kInfinity);
    }
    biases_alone(masked, 1500, false, true);
    biases_alone(masked, begin == 0 ? 1024 : 0, true, true);
    masked[3].second = std::numeric_limits<float>::quiet_NaN();
    biases_alone(masked, 1500, false, false);
  }
}

}  // namespace

int main() {
  shapes();
  across_blocks();
  return check::result();
}
