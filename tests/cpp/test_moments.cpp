// Updates by moments of the last steps' gradients: which steps count and how much, and the kernel against a version of one
// element at a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"
#include "kernels/zeroth_order.h"
#include "rng/normal.h"
#include "rng/variants.h"
#include "session/train/moments.h"

using namespace zoexport;
using kernels::Moments;
using kernels::MomentStep;

namespace {

constexpr uint64_t kSeed = 7;
constexpr uint32_t kTensor = 5;
constexpr uint32_t kQueries = 3;
constexpr float kRate = 1e-2f;

// Records of which each has gradients of another size, and one that is not the slot's before them.
std::vector<Record> records_of(uint32_t count) {
  std::vector<Record> records;
  for (uint32_t step = 0; step < count; ++step) {
    const auto size = static_cast<float>(step + 1);
    records.push_back({step, kRate, 1e-3f, 1.0f, {99.0f, 0.5f * size, -1.25f, 3.0f / size}});
  }
  return records;
}

std::vector<MomentStep> steps_of(const UpdateRule& rule, const std::vector<Record>& records) {
  return moment_steps(rule, {records.data(), records.size()}, 1, kQueries);
}

bool close(float found, double expected) { return std::fabs(found - expected) <= 1e-6 * std::fabs(expected); }

void the_newest_counts_most() {
  const std::vector<Record> records = records_of(6);
  const UpdateRule rule{UpdateKind::kMomentum, 0.5, 0, 3};
  const std::vector<MomentStep> steps = steps_of(rule, records);
  CHECK(steps.size() == 3);
  const double weights[] = {4 / 7.0, 2 / 7.0, 1 / 7.0};
  for (size_t i = 0; i < steps.size(); ++i) {
    CHECK(steps[i].step == 5 - i && steps[i].gradients == records[5 - i].gradients.data() + 1);
    CHECK(close(steps[i].first, weights[i]));
  }
}

// A short history has the weights of as many steps as there are: they add up to 1.
void weights_add_up() {
  for (const uint32_t count : {1u, 2u, 5u, 12u}) {
    const std::vector<Record> records = records_of(count);
    const UpdateRule rule{UpdateKind::kAdam, 0.9, 0.99, 10};
    const std::vector<MomentStep> steps = steps_of(rule, records);
    CHECK(steps.size() == std::min(count, 10u));
    double first = 0, second = 0;
    for (const MomentStep& step : steps) {
      first += step.first;
      second += step.second;
    }
    CHECK(close(static_cast<float>(first * kQueries), 1));
    CHECK(close(static_cast<float>(second * kQueries * kQueries), 1));
  }
}

// Steps that count in neither moment cost nothing.
void steps_without_weight_are_left_out() {
  const std::vector<Record> records = records_of(4);
  CHECK(steps_of({UpdateKind::kMomentum, 0, 0, 10}, records).size() == 1);
  CHECK(steps_of({UpdateKind::kAdam, 0, 0, 10}, records).size() == 1);
  const std::vector<MomentStep> steps = steps_of({UpdateKind::kAdam, 0, 0.5, 10}, records);
  CHECK(steps.size() == 4 && steps[1].first == 0 && steps[1].second > 0);
}

std::vector<float> master_of(size_t n) {
  std::vector<float> values(n);
  rng::normals({99, 1, 0, 0}, 0, n, values.data());
  return values;
}

std::vector<float> updated(const std::vector<float>& master, const Moments& moments, rng::NoiseBlocks blocks) {
  std::vector<float> out(master.size());
  CHECK(kernels::zo_update_moments(master.data(), master.size(), moments, kTensor, out.data(), blocks));
  return out;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One element by the definition, each operation rounded.
float expected(float master, size_t element, const Moments& moments) {
  float m = 0, v = 0;
  for (size_t k = 0; k < moments.count; ++k) {
    const MomentStep& step = moments.steps[k];
    float sum = 0;
    for (uint32_t j = 0; j < moments.q; ++j) {
      float z;
      rng::normals({moments.seed, kTensor, j, step.step}, element, 1, &z);
      sum = j == 0 ? step.gradients[j] * z : sum + step.gradients[j] * z;
    }
    const float part = step.first * sum;
    const float square = sum * sum;
    const float weighed = step.second * square;
    m = k == 0 ? part : m + part;
    v = k == 0 ? weighed : v + weighed;
  }
  const float move = moments.divided ? m / (std::sqrt(v) + 1e-8f) : m;
  return master - moments.rate * move;
}

void kernel_is_the_definition() {
  const std::vector<Record> records = records_of(5);
  for (const UpdateKind kind : {UpdateKind::kMomentum, UpdateKind::kAdam}) {
    const UpdateRule rule{kind, 0.9, 0.99, 4};
    const std::vector<MomentStep> steps = steps_of(rule, records);
    const Moments moments = moments_of(rule, steps, kRate, kQueries, kSeed);
    for (const size_t n : {1u, 3u, 255u, 256u, 257u, 1000u}) {
      const std::vector<float> master = master_of(n);
      const std::vector<float> out = updated(master, moments, rng::fastest().normal_blocks);
      for (size_t i = 0; i < n; ++i) {
        CHECK(out[i] == expected(master[i], i, moments));
      }
      for (const rng::Variant& variant : rng::variants()) {
        CHECK(!variant.runs_here || same(updated(master, moments, variant.normal_blocks), out));
      }
      std::vector<float> in_parts = master;
      for (size_t begin = 0; begin < n; begin += rng::kElements) {
        const size_t count = std::min<size_t>(rng::kElements, n - begin);
        CHECK(kernels::zo_update_moments(&in_parts[begin], count, moments, kTensor, &in_parts[begin],
                                         rng::fastest().normal_blocks, begin));
      }
      CHECK(same(in_parts, out));
    }
  }
}

// With one step momentum is SGD, to the bit, and Adam goes the rate along the sign of the gradient.
void of_one_step() {
  const std::vector<float> master = master_of(515);
  const std::vector<Record> records = records_of(3);
  std::vector<float> sgd(master.size());
  CHECK(kernels::zo_update(master.data(), master.size(), records[2].gradients.data() + 1, kQueries, kRate, kSeed, 3,
                           kTensor, sgd.data()));
  const UpdateRule rules[] = {{UpdateKind::kMomentum, 0.9, 0, 1}, {UpdateKind::kMomentum, 0, 0, 10}};
  for (const UpdateRule& rule : rules) {
    const std::vector<MomentStep> steps = steps_of(rule, records);
    const Moments moments = moments_of(rule, steps, kRate, kQueries, kSeed);
    CHECK(same(updated(master, moments, rng::fastest().normal_blocks), sgd));
  }
  const UpdateRule adam{UpdateKind::kAdam, 0, 0, 1};
  const std::vector<MomentStep> steps = steps_of(adam, records);
  const std::vector<float> out =
      updated(master, moments_of(adam, steps, kRate, kQueries, kSeed), rng::fastest().normal_blocks);
  for (size_t i = 0; i < master.size(); ++i) {
    const double move = sgd[i] < master[i] ? kRate : -kRate;
    CHECK(std::fabs(double{master[i]} - out[i] - move) < 1e-5);
  }
}

void copies_and_refuses() {
  std::vector<float> master = master_of(10);
  master[0] = -0.0f;
  const float none[2] = {0.0f, -0.0f};
  const MomentStep steps[] = {{none, 4, 0.5f, 0.5f}, {none, 3, 0.5f, 0.5f}};
  CHECK(same(updated(master, {steps, 2, 2, 1.0f, true, kSeed}, rng::fastest().normal_blocks), master));
  std::vector<float> out(10, 5.0f);
  for (const Moments& bad : {Moments{steps, 0, 2, 1.0f, true, kSeed}, Moments{steps, 2, 0, 1.0f, true, kSeed}}) {
    CHECK(!kernels::zo_update_moments(master.data(), 10, bad, kTensor, out.data()));
  }
  CHECK(out == std::vector<float>(10, 5.0f));
}

// A step without gradients of its own moves on by those before it.
void goes_on_without_gradients() {
  std::vector<Record> records = records_of(2);
  records[1].gradients.assign(4, 0.0f);
  const UpdateRule rule{UpdateKind::kMomentum, 0.5, 0, 2};
  const std::vector<MomentStep> steps = steps_of(rule, records);
  const std::vector<float> master = master_of(9);
  CHECK(!same(updated(master, moments_of(rule, steps, kRate, kQueries, kSeed), rng::fastest().normal_blocks), master));
}

}  // namespace

int main() {
  the_newest_counts_most();
  weights_add_up();
  steps_without_weight_are_left_out();
  kernel_is_the_definition();
  of_one_step();
  copies_and_refuses();
  goes_on_without_gradients();
  return check::result();
}
