// Datasets, rows and calls, losses, and the rule that ends a diverging run.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "session/data/batching.h"
#include "session/data/dataset.h"
#include "session/data/loss.h"
#include "session/memory.h"
#include "session/train/divergence.h"
#include "session/train/trainer.h"

using namespace zoexport;

namespace {

using Numbers = std::vector<int64_t>;
struct Choice {
  Numbers tokens;
  Numbers labels;
};

void add(Dataset& dataset, const std::vector<Choice>& choices, size_t target) {
  std::vector<zo_candidate> candidates;
  for (const Choice& choice : choices) {
    candidates.push_back({choice.tokens.data(), choice.labels.data(), choice.tokens.size()});
  }
  CHECK(dataset.add(candidates.data(), candidates.size(), target, "example").ok());
}

Layout laid_out(const Dataset& dataset, const uint64_t* indices, size_t count, bool all_candidates,
                const CallLimits& limits) {
  auto layout = lay_out(dataset, indices, count, all_candidates, limits);
  return CHECK(layout.ok()) ? std::move(*layout) : Layout();
}

bool near(double a, double b) { return std::fabs(a - b) <= 1e-12 * (1 + std::fabs(b)); }

void test_dataset() {
  Dataset dataset;
  add(dataset, {{{1, 2, 3}, {-100, 3, -100}}, {{1, 9}, {7, -100}}}, 1);
  add(dataset, {{{4}, {5}}}, 0);
  CHECK(dataset.size() == 2 && dataset.candidates(0) == 2 && dataset.candidates(1) == 1);
  CHECK(dataset.target(0) == 1 && dataset.longest() == 3 && dataset.largest_token() == 9);
  CHECK(dataset.candidate(0, 1).length == 2 && dataset.candidate(0, 1).labels[0] == 7);
  CHECK(dataset.candidate(1, 0).length == 1 && dataset.candidate(1, 0).tokens[0] == 4);
  CHECK(!dataset.add(nullptr, 0, 0, "example").ok());
  CHECK(dataset.size() == 2);
}

void test_row_sharing() {
  Dataset dataset;
  // The first two see the same tokens; the third sees one more of the second's; the fourth differs within its view.
  add(dataset,
      {{{1, 2, 5}, {-100, 5, -100}},
       {{1, 2, 6}, {-100, 6, -100}},
       {{1, 2, 6, 8}, {-100, 6, 8, -100}},
       {{1, 3, 5}, {-100, 5, -100}}},
      0);
  const uint64_t first = 0;
  const Layout layout = laid_out(dataset, &first, 1, true, {4, 4, 4, 16, 1});
  CHECK(layout.calls.size() == 1 && layout.labels == (std::vector<uint32_t>{1, 1, 2, 1}));
  const Call& call = layout.calls[0];
  CHECK(call.tokens == (Numbers{1, 2, 6, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  CHECK(call.label_positions == (Numbers{1, 1, 1, 2, 5}));
  CHECK(call.label_tokens == (Numbers{5, 6, 6, 8, 5}));
  CHECK(call.owners == (std::vector<uint32_t>{0, 1, 2, 2, 3}));
  const Layout trimmed = laid_out(dataset, &first, 1, true, {2, 4, 1, 16, 1});
  CHECK(trimmed.calls[0].length == 3 && trimmed.calls[0].tokens == (Numbers{1, 2, 6, 1, 3, 0}));
  CHECK(trimmed.calls[0].label_positions == (Numbers{1, 1, 1, 2, 4}));
  // The smallest of the lengths that fits; none of them is shorter than the row.
  const Layout stepped = laid_out(dataset, &first, 1, true, {2, 8, 2, 16, 1, {2, 5, 8}});
  CHECK(stepped.calls[0].length == 5 && stepped.calls[0].tokens == (Numbers{1, 2, 6, 0, 0, 1, 3, 0, 0, 0}));
  CHECK(stepped.calls[0].label_positions == (Numbers{1, 1, 1, 2, 6}));
  const Layout right = laid_out(dataset, &first, 1, false, {4, 4, 4, 16, 1});
  CHECK(right.labels.size() == 1 && right.calls[0].label_tokens == Numbers{5});
}

// A model whose labels see the whole row: rows are shared by equal ones alone, nothing is cut off, padding is its token.
void test_rows_that_are_seen_whole() {
  Dataset dataset;
  // The second is the first with other labels; the third only begins with it; the fourth differs after its label.
  add(dataset,
      {{{1, 2, 5}, {-100, 7, -100}},
       {{1, 2, 5}, {-100, 8, -100}},
       {{1, 2, 5, 6}, {-100, 9, -100, -100}},
       {{1, 2, 4}, {-100, 7, -100}}},
      0);
  const uint64_t first = 0;
  const Layout layout = laid_out(dataset, &first, 1, true, {4, 6, 1, 16, 1, {}, 3});
  CHECK(layout.calls.size() == 1 && layout.calls[0].length == 4);
  const Call& call = layout.calls[0];
  CHECK(call.tokens == (Numbers{1, 2, 5, 3, 1, 2, 5, 6, 1, 2, 4, 3, 3, 3, 3, 3}));
  CHECK(call.label_positions == (Numbers{1, 1, 5, 9}));
  CHECK(call.label_tokens == (Numbers{7, 8, 9, 7}));
  CHECK(call.owners == (std::vector<uint32_t>{0, 1, 2, 3}));
  // What a length adds is padding too, and so is all of a row that no example fills.
  const Layout stepped = laid_out(dataset, &first, 1, false, {2, 8, 2, 16, 1, {2, 5, 8}, 3});
  CHECK(stepped.calls[0].tokens == (Numbers{1, 2, 5, 3, 3, 3, 3, 3, 3, 3}));
  // The same examples for a causal model: one row, cut after the last label.
  const Layout causal = laid_out(dataset, &first, 1, true, {4, 6, 1, 16, 1});
  CHECK(causal.calls[0].length == 2 && causal.calls[0].label_positions == (Numbers{1, 1, 1, 1}));
}

// Whatever the limits, every entry of every candidate appears once, at a position whose visible tokens are the candidate's.
void test_every_entry_is_laid_out_once() {
  std::mt19937 random(4);
  for (int round = 0; round < 300; ++round) {
    Dataset dataset;
    const size_t examples = 1 + random() % 5;
    for (size_t e = 0; e < examples; ++e) {
      std::vector<Choice> choices(1 + random() % 4);
      const size_t prompt = 1 + random() % 4;
      for (Choice& choice : choices) {
        const size_t length = prompt + random() % 3;
        for (size_t t = 0; t < length; ++t) {
          choice.tokens.push_back(t < prompt ? static_cast<int64_t>(t) : static_cast<int64_t>(random() % 3));
          choice.labels.push_back(random() % 2 == 0 ? static_cast<int64_t>(random() % 4) : -100);
        }
        choice.labels[random() % length] = 1;
      }
      const size_t count = choices.size();
      add(dataset, choices, random() % count);
    }
    std::vector<uint64_t> indices;
    for (size_t i = 0; i < 1 + random() % 6; ++i) {
      indices.push_back(random() % examples);
    }
    const auto up_to = [&](uint32_t most) { return 1 + static_cast<uint32_t>(random() % most); };
    const CallLimits limits{up_to(4), 6, up_to(6), up_to(7), 1};
    const Layout layout = laid_out(dataset, indices.data(), indices.size(), true, limits);
    std::vector<std::vector<std::pair<int64_t, int64_t>>> found(layout.labels.size());
    std::vector<Candidate> owners;
    for (uint64_t index : indices) {
      for (size_t c = 0; c < dataset.candidates(index); ++c) {
        owners.push_back(dataset.candidate(index, c));
      }
    }
    CHECK(owners.size() == layout.labels.size());
    for (const Call& call : layout.calls) {
      CHECK(!call.owners.empty() && call.owners.size() <= limits.max_labels);
      CHECK(call.length >= limits.min_length && call.length <= limits.max_length);
      CHECK(call.tokens.size() == size_t{limits.rows} * call.length);
      for (size_t i = 0; i < call.owners.size(); ++i) {
        const int64_t row = call.label_positions[i] / call.length;
        const int64_t position = call.label_positions[i] % call.length;
        found[call.owners[i]].emplace_back(position, call.label_tokens[i]);
        for (int64_t t = 0; t <= position; ++t) {
          CHECK(call.tokens[static_cast<size_t>(row * call.length + t)] == owners[call.owners[i]].tokens[t]);
        }
      }
    }
    for (size_t c = 0; c < owners.size(); ++c) {
      std::vector<std::pair<int64_t, int64_t>> expected;
      for (uint32_t t = 0; t < owners[c].length; ++t) {
        if (owners[c].labels[t] != kNoLabel) {
          expected.emplace_back(t, owners[c].labels[t]);
        }
      }
      CHECK(found[c] == expected && layout.labels[c] == expected.size());
    }
  }
}

// The rows of an example's candidates by the rule itself: each goes to the first row that begins with it, or begins it; the
// longest rows are first.
std::vector<Numbers> rows_by_the_rule(const Dataset& dataset, bool causal) {
  std::vector<Numbers> rows;
  for (size_t c = 0; c < dataset.candidates(0); ++c) {
    const Candidate candidate = dataset.candidate(0, c);
    uint32_t length = candidate.length;
    while (causal && candidate.labels[length - 1] == kNoLabel) {
      --length;
    }
    const Numbers seen(candidate.tokens, candidate.tokens + length);
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Numbers& other) {
      return (causal || seen.size() == other.size()) &&
             std::equal(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(std::min(seen.size(), other.size())),
                        other.begin());
    });
    if (row == rows.end()) {
      rows.push_back(seen);
    } else if (seen.size() > row->size()) {
      *row = seen;
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Numbers& a, const Numbers& b) { return a.size() > b.size(); });
  return rows;
}

// A call is as long as its longest row, so rows of several calls are dealt by length.
void test_rows_of_a_length_share_calls() {
  Dataset dataset;
  std::vector<uint64_t> indices;
  for (const size_t length : {2, 6, 1, 5, 2, 6}) {
    Choice choice;
    choice.tokens.assign(length, static_cast<int64_t>(10 + indices.size()));
    choice.labels.assign(length, 1);
    add(dataset, {choice}, 0);
    indices.push_back(indices.size());
  }
  const CallLimits limits{2, 6, 1, 100, 1};
  const Layout layout = laid_out(dataset, indices.data(), indices.size(), true, limits);
  std::vector<uint32_t> lengths, examples;
  for (const Call& call : layout.calls) {
    lengths.push_back(call.length);
    examples.insert(examples.end(), call.examples.begin(), call.examples.end());
  }
  CHECK(lengths == (std::vector<uint32_t>{6, 5, 2}));
  CHECK(examples == (std::vector<uint32_t>{1, 5, 3, 0, 4, 2}));
  // Of one call the order stays.
  const Layout one = laid_out(dataset, indices.data(), 2, true, limits);
  CHECK(one.calls.size() == 1 && one.calls[0].examples == (std::vector<uint32_t>{0, 1}));
}

void test_rows_are_those_of_the_rule() {
  std::mt19937 random(6);
  for (int round = 0; round < 2000; ++round) {
    const bool causal = round % 3 != 0;
    std::vector<Choice> choices(1 + random() % 30);
    for (Choice& choice : choices) {
      const size_t length = 1 + random() % 5;
      for (size_t t = 0; t < length; ++t) {
        choice.tokens.push_back(static_cast<int64_t>(1 + random() % 2));
        choice.labels.push_back(random() % 2 == 0 ? 1 : kNoLabel);
      }
      choice.labels[random() % length] = 1;
    }
    Dataset dataset;
    add(dataset, choices, 0);
    const uint64_t first = 0;
    CallLimits limits{1, 6, 1, 1000, 1};
    if (!causal) {
      limits.pad_token = 3;
    }
    const Layout layout = laid_out(dataset, &first, 1, true, limits);
    std::vector<Numbers> rows;
    for (const Call& call : layout.calls) {
      rows.push_back(call.tokens);
    }
    CHECK(rows == rows_by_the_rule(dataset, causal));
  }
}

// Each of many candidates is compared with few rows: with all of them this takes minutes.
void test_many_candidates() {
  constexpr int64_t kMany = 200000;
  Dataset dataset;
  std::vector<Choice> choices;
  for (int64_t i = 0; i < kMany; ++i) {
    // Rows of their own, and short beginnings of all of them.
    choices.push_back({{1, 2, i}, {-100, i % 2 == 0 ? 1 : -100, 2}});
    choices.push_back({{1, 2}, {-100, 3}});
  }
  add(dataset, choices, 0);
  const uint64_t first = 0;
  const auto start = std::chrono::steady_clock::now();
  const Layout layout = laid_out(dataset, &first, 1, true, {1 << 10, 4, 1, 1 << 20, 1});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(layout.labels.size() == 2 * kMany && layout.calls.size() == (kMany + 1023) / 1024);
  CHECK(seconds < 20);
}

// Rows of 2^20 by 2^20 tokens are refused with both numbers, and not begun.
void test_rows_beyond_memory() {
  Dataset dataset;
  add(dataset, {{{1}, {2}}}, 0);
  const uint64_t first = 0;
  const auto refused = lay_out(dataset, &first, 1, false, {1 << 20, 1 << 20, 1 << 20, 16, 1});
  CHECK(!refused.ok() && refused.failure().found == "rows that take 8796093022224 bytes");
  CHECK(!refused.ok() &&
        refused.failure().expected.find(std::to_string(machine_memory()) + " bytes") != std::string::npos);
  const auto labels = lay_out(dataset, &first, 1, false, {1, 8, 8, UINT32_MAX, UINT32_MAX});
  CHECK(!labels.ok() && labels.failure().found == "rows that take 68719476784 bytes");
}

// The derivative by an entry's log-probability is what a small change of one changes.
void test_weights() {
  Dataset choices, pairs;
  add(choices, {{{1, 2}, {2, 3}}, {{1, 5}, {5, -100}}, {{7}, {7}}}, 1);
  add(choices, {{{4, 4}, {1, 2}}, {{9}, {9}}}, 0);
  add(pairs, {{{1, 2}, {2, 3}}, {{1, 5}, {5, -100}}}, 1);
  add(pairs, {{{4, 4}, {1, 2}}, {{9}, {9}}}, 0);
  const uint64_t indices[2] = {0, 1};
  for (const Objective& run :
       {Objective{ZO_LOSS_FULL}, Objective{ZO_LOSS_CHOICES}, Objective{ZO_LOSS_CHOICES, 0, ZO_CHOICES_MEAN},
        Objective{ZO_LOSS_DPO, 0.7}, Objective{ZO_LOSS_ORPO, 0.7}}) {
    const Dataset& dataset = of_pairs(run.loss) ? pairs : choices;
    Layout layout = laid_out(dataset, indices, 2, compares(run.loss), {8, 2, 2, 16, 1});
    layout.reference = {-1.25, -3.5, -0.5, -2};
    const Call& call = layout.calls[0];
    const auto loss = [&](size_t changed, float by) {
      std::vector<float> logprobs;
      for (size_t i = 0; i < call.owners.size(); ++i) {
        logprobs.push_back(-0.5f * static_cast<float>(i + 1) + (i == changed ? by : 0.0f));
      }
      CandidateScores scores(layout);
      scores.add(call, logprobs.data());
      return std::pair(scores.mean_loss(run), scores.weights(run));
    };
    const std::vector<double> weights = loss(call.owners.size(), 0).second;
    for (size_t i = 0; i < call.owners.size(); ++i) {
      const double slope = (loss(i, 0.015625f).first - loss(i, -0.015625f).first) / 0.03125;
      CHECK(std::fabs(slope - weights[call.owners[i]]) < 1e-3);
    }
  }
}

void test_losses() {
  Dataset dataset;
  add(dataset, {{{1, 2}, {2, 3}}, {{1, 5}, {5, -100}}, {{7}, {7}}}, 1);
  add(dataset, {{{4, 4}, {1, 2}}}, 0);
  const uint64_t indices[2] = {0, 1};
  const Layout layout = laid_out(dataset, indices, 2, true, {2, 2, 2, 3, 1});
  CHECK(layout.calls.size() == 2);
  CandidateScores scores(layout);
  // By entry: candidate 0 has -1 and -2, candidate 1 has -0.5, candidate 2 has -4, the other example -3 and -0.25.
  std::vector<std::vector<float>> logprobs;
  const float of_owner[4][2] = {{-1, -2}, {-0.5f, 0}, {-4, 0}, {-3, -0.25f}};
  size_t used[4] = {0, 0, 0, 0};
  for (const Call& call : layout.calls) {
    std::vector<float> values;
    for (uint32_t owner : call.owners) {
      values.push_back(of_owner[owner][used[owner]++]);
    }
    scores.add(call, values.data());
  }
  const Objective full{ZO_LOSS_FULL}, choices{ZO_LOSS_CHOICES};
  CHECK(near(scores.loss(0, full), 0.5) && near(scores.loss(1, full), 3.25 / 2));
  CHECK(near(scores.mean_loss(full), (0.5 + 3.25 / 2) / 2));
  const double expected = std::log(std::exp(-3.0) + std::exp(-0.5) + std::exp(-4.0)) + 0.5;
  CHECK(near(scores.loss(0, choices), expected) && scores.loss(1, choices) == 0);
  CHECK(scores.right(0, choices) && scores.right(1, choices));
  // Means of -1.5, -0.5 and -4.
  const Objective means{ZO_LOSS_CHOICES, 0, ZO_CHOICES_MEAN};
  CHECK(near(scores.loss(0, means), std::log(std::exp(-1.5) + std::exp(-0.5) + std::exp(-4.0)) + 0.5));
  CHECK(scores.right(0, means));
}

// Two tokens of -1 each are less likely than one of -1.5, and each of them is more.
void test_the_mean_prefers_longer_choices() {
  Dataset dataset;
  add(dataset, {{{1, 2}, {2, 3}}, {{4}, {4}}}, 0);
  const uint64_t index = 0;
  const Layout layout = laid_out(dataset, &index, 1, true, {2, 2, 2, 3, 1});
  CandidateScores scores(layout);
  const float logprobs[3] = {-1, -1, -1.5f};
  scores.add(layout.calls[0], logprobs);
  for (const int32_t loss : {ZO_LOSS_FULL, ZO_LOSS_CHOICES}) {
    CHECK(!scores.right(0, {loss, 0, ZO_CHOICES_SUM}) && scores.right(0, {loss, 0, ZO_CHOICES_MEAN}));
  }
}

// A chosen answer of two tokens and a rejected one of one, the second being the target of the first example.
void test_losses_of_pairs() {
  Dataset dataset;
  add(dataset, {{{1}, {2}}, {{3, 4}, {4, 5}}}, 1);
  const uint64_t index = 0;
  Layout layout = laid_out(dataset, &index, 1, true, {2, 2, 2, 3, 1});
  layout.reference = {-2, -7};
  const auto scored = [&](float rejected, float first, float second) {
    CandidateScores scores(layout);
    const float logprobs[3] = {rejected, first, second};
    scores.add(layout.calls[0], logprobs);
    return scores;
  };
  const CandidateScores scores = scored(-3, -1, -4);
  const Objective dpo{ZO_LOSS_DPO, 0.5}, orpo{ZO_LOSS_ORPO, 0.5};
  // Log-ratios of 2 and -1.
  CHECK(near(scores.loss(0, dpo), std::log(1 + std::exp(-1.5))) && near(scores.margin(0, dpo), 1.5));
  CHECK(scores.right(0, dpo) && !scored(-1, -3, -4).right(0, dpo));
  // Means of -2.5 and -3.
  const double odds[2] = {std::exp(-2.5) / (1 - std::exp(-2.5)), std::exp(-3.0) / (1 - std::exp(-3.0))};
  CHECK(near(scores.loss(0, orpo), 2.5 + 0.5 * std::log(1 + odds[1] / odds[0])));
  CHECK(near(scores.margin(0, orpo), 0.25) && scores.right(0, orpo));
  // No difference is no preference.
  CHECK(!scored(-2, -3, -4).right(0, dpo) && near(scored(-2, -3, -4).loss(0, dpo), std::log(2.0)));
  // Answers that are certain, or hopeless, have finite losses and gradients.
  for (const CandidateScores& extreme :
       {scored(0, 0, 0), scored(-2000, 0, 0), scored(0, -2000, -2000), scored(-2000, -2000, -2000)}) {
    for (const Objective& run : {dpo, orpo}) {
      const std::vector<double> weights = extreme.weights(run);
      CHECK(std::isfinite(extreme.loss(0, run)) && std::isfinite(weights[0]) && std::isfinite(weights[1]));
      CHECK(weights[0] >= 0 && weights[1] <= 0);
    }
  }
}

void test_losses_far_from_zero() {
  Dataset dataset;
  add(dataset, {{{1}, {2}}, {{3}, {4}}}, 0);
  const uint64_t index = 0;
  const Layout layout = laid_out(dataset, &index, 1, true, {2, 2, 2, 3, 1});
  CandidateScores scores(layout);
  const float logprobs[2] = {-2000.0f, -1000.0f};
  scores.add(layout.calls[0], logprobs);
  const Objective choices{ZO_LOSS_CHOICES};
  CHECK(near(scores.loss(0, choices), 1000.0) && !scores.right(0, choices));
}

// The steps that are kept of a run with these losses, if it is stopped; each update is to lower the loss by `promised`.
std::optional<uint64_t> kept(const std::vector<float>& losses, size_t* stopped, double promised = 0) {
  DivergenceGuard guard;
  for (*stopped = 0; *stopped < losses.size(); ++*stopped) {
    const Record record{static_cast<uint32_t>(*stopped), 1, 1e-2f, losses[*stopped], {}};
    if (const auto divergence = guard.observe(record, promised)) {
      return divergence->kept;
    }
  }
  return std::nullopt;
}

void test_losses_that_diverge() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  size_t stopped = 0;
  CHECK(!kept({2, 2, 2, 19, 19, 19, 19, 2, 19, 19, 19, 19, 2}, &stopped));
  CHECK(!kept({2, 20, 20, 20, 20, 20, 20, 20}, &stopped));  // exactly ten times is not above
  CHECK(kept({2, 3, 1, 21, 21, 21, 21, 21}, &stopped) == 2u && stopped == 7);
  // A run that leaves at once does not become its own baseline.
  CHECK(kept({2, 50, 50, 50, 50, 50}, &stopped) == 0u && stopped == 5);
  CHECK(kept({2, 2, nan}, &stopped) == 1u && stopped == 2);
  CHECK(kept({2, 2, 50, 50, std::numeric_limits<float>::infinity()}, &stopped) == 1u && stopped == 4);
  CHECK(kept({nan}, &stopped) == 0u);
  CHECK(!kept({0, 1e-3f, 1e-3f, 1e-3f, 1e-3f, 1e-3f, 1e-3f}, &stopped));
}

void test_updates_that_promise_too_much() {
  size_t stopped = 0;
  // learning_rate g^2 = 4 a step: more than ten losses of 0.3, less than ten losses of 0.5.
  const float gradients[2] = {2, -2};
  const double four = promised_decrease(1, gradients, 2);
  CHECK(four == 4 && promised_decrease(0.5f, gradients, 1) == 2);
  CHECK(kept({.3f, .3f, .3f, .3f, .3f, .3f}, &stopped, four) == 0u && stopped == 4);
  CHECK(!kept({.5f, .5f, .5f, .5f, .5f, .5f}, &stopped, four));
  CHECK(!kept({.3f, .3f, .3f, .3f}, &stopped, four));
  // Among the last five steps, those before the first that promised more than its loss are kept.
  CHECK(kept({9, 9, .3f, .3f, .3f, .3f, .3f}, &stopped, four) == 2u && stopped == 6);
  CHECK(kept({9, 9, 1, .2f, .2f, .2f, .2f}, &stopped, four) == 2u && stopped == 6);
  // One easy batch among hard ones is nothing, nor is a loss of almost zero with gradients of almost zero.
  CHECK(!kept({5, 5, 1e-6f, 5, 5, 5}, &stopped, four));
  CHECK(!kept({1e-6f, 1e-6f, 1e-6f, 1e-6f, 1e-6f}, &stopped, 1e-4));
  CHECK(!kept({.3f, .3f, .3f, .3f, .3f, .3f}, &stopped, 0.02));
}

}  // namespace

int main() {
  test_dataset();
  test_row_sharing();
  test_rows_that_are_seen_whole();
  test_every_entry_is_laid_out_once();
  test_rows_are_those_of_the_rule();
  test_rows_of_a_length_share_calls();
  test_many_candidates();
  test_rows_beyond_memory();
  test_losses();
  test_the_mean_prefers_longer_choices();
  test_weights();
  test_losses_of_pairs();
  test_losses_far_from_zero();
  test_losses_that_diverge();
  test_updates_that_promise_too_much();
  return check::result();
}
