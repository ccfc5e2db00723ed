// Session: evaluation, and scores of pairs under the reference model.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "session/data/loss.h"
#include "session/session.h"
#include "session/storage/files.h"

namespace zoexport {
namespace {

Failure not_evaluated() {
  return {ZO_CANCELLED, "the evaluation", "a request to stop", "all examples to be evaluated", "Evaluate again."};
}

}  // namespace

// --- Reference model's scores (docs/formats.md) ------------------------------------------------------------------

const ReferenceScores* Session::find_reference(const RunData& data) const {
  const auto found = std::find_if(references_.begin(), references_.end(),
                                  [&](const ReferenceScores& one) { return one.data == data; });
  return found == references_.end() ? nullptr : &*found;
}

Result<std::vector<std::vector<CandidateScore>>> Session::score_with(const StateValues& state, const Dataset& dataset,
                                                                     const uint64_t* indices, size_t count,
                                                                     const GoOn& go_on) {
  std::vector<std::vector<CandidateScore>> scores;
  for (size_t begin = 0; begin < count; begin += kEvaluationGroup) {
    const size_t part = std::min(kEvaluationGroup, count - begin);
    ZO_ASSIGN(layout, lay_out(dataset, indices + begin, part, /*all_candidates=*/true, evaluator_->limits()));
    CandidateScores sums(layout);
    std::vector<uint32_t> argmax(layout.labels.size(), 0);
    for (size_t done = 0; done < layout.calls.size(); ++done) {
      if (go_on && !go_on(begin + part * done / layout.calls.size(), count)) {
        return not_evaluated();
      }
      const Call& call = layout.calls[done];
      CallScalars scalars;
      scalars.seed = run_.seed();
      ZO_TRY(evaluator_->run(call, scalars, *slots_, state, /*next=*/false));
      sums.add(call, evaluator_->logprobs(0));
      for (size_t i = 0; i < call.owners.size(); ++i) {
        argmax[call.owners[i]] += evaluator_->is_argmax()[i] > 0.5f ? 1 : 0;
      }
    }
    for (const Layout::Example& example : layout.examples) {
      std::vector<CandidateScore>& found = scores.emplace_back();
      for (uint32_t i = example.first; i < example.first + example.count; ++i) {
        found.push_back({sums.sums()[i], layout.labels[i], argmax[i]});
      }
    }
  }
  return scores;
}

Result<std::vector<double>> Session::score_reference(const Dataset& dataset, const uint64_t* indices, size_t count,
                                                     const GoOn& go_on) {
  ZO_ASSIGN(scored, score_with(untrained(), dataset, indices, count, go_on));
  std::vector<double> scores;
  for (size_t i = 0; i < count; ++i) {
    for (const CandidateScore& one : scored[i]) {
      if (!std::isfinite(one.logprob)) {
        return Failure{ZO_DATA_ERROR, "example " + std::to_string(indices[i]),
                       "a score of the reference model that is not finite", "finite log-probabilities of both answers",
                       "Remove the example, or use loss=orpo, which has no reference model."};
      }
      scores.push_back(one.logprob);
    }
  }
  return scores;
}

Result<std::vector<double>> Session::reference_of(const Dataset& dataset, const uint64_t* indices, size_t count,
                                                  const ReferenceScores* known, const GoOn& go_on) {
  if (run_.loss() != ZO_LOSS_DPO) {
    return std::vector<double>();
  }
  if (known == nullptr) {
    return score_reference(dataset, indices, count, go_on);
  }
  std::vector<double> scores;
  for (size_t i = 0; i < count; ++i) {
    scores.insert(scores.end(), {known->scores[2 * indices[i]], known->scores[2 * indices[i] + 1]});
  }
  return scores;
}

Status Session::know_reference(const std::vector<const Dataset*>& datasets, const GoOn& go_on) {
  if (run_.loss() != ZO_LOSS_DPO) {
    references_.clear();
    return {};
  }
  if (references_.empty() && state_ && exists(state_->reference_path())) {
    ZO_ASSIGN(read, read_reference(state_->reference_path(), manifest_.bundle_id));
    references_ = std::move(read);
  }
  std::vector<RunData> needed;
  needed.reserve(datasets.size());
  for (const Dataset* dataset : datasets) {
    needed.push_back({dataset->digest(), dataset->size()});
  }
  // Drop scores of datasets that the run no longer uses.
  references_.erase(std::remove_if(references_.begin(), references_.end(),
                                   [&](const ReferenceScores& one) {
                                     return std::find(needed.begin(), needed.end(), one.data) == needed.end();
                                   }),
                    references_.end());
  for (size_t i = 0; i < datasets.size(); ++i) {
    if (find_reference(needed[i]) != nullptr) {
      continue;
    }
    std::vector<uint64_t> all(datasets[i]->size());
    std::iota(all.begin(), all.end(), 0);
    const auto score = [&] { return score_reference(*datasets[i], all.data(), all.size(), go_on); };
    ZO_ASSIGN(scores, or_fall_back(score));
    references_.push_back({needed[i], std::move(scores)});
    if (state_) {
      ZO_TRY(state_->write_reference(references_));
    }
  }
  return {};
}

// --- Evaluation ------------------------------------------------------------------------------------------------------

Result<StateValues> Session::finished() {
  const bool next = !pending().empty();
  for (size_t i = 0; next && i < slots_->size(); ++i) {
    if (slots_->trainable(i)) {
      ZO_TRY(trainer_->apply(pending(), run_.seed(), slots_->spec(i), slots_->current(i), slots_->next(i)));
    }
  }
  return StateValues([this, next](size_t slot) -> const void* {
    return next && slots_->trainable(slot) ? slots_->next(slot) : slots_->current(slot);
  });
}

Result<Evaluation> Session::evaluate_on(const Dataset& dataset, const GoOn& go_on) {
  ZO_TRY(check_dataset(dataset));
  ZO_ASSIGN(state, finished());
  const ReferenceScores* const known =
      references_.empty() ? nullptr : find_reference({dataset.digest(), dataset.size()});
  const Objective objective = run_.objective();
  double loss = 0, margin = 0;
  uint64_t with_choices = 0, right = 0, labels = 0, argmax = 0;
  std::vector<uint64_t> indices(dataset.size());
  std::iota(indices.begin(), indices.end(), 0);
  for (size_t begin = 0; begin < indices.size(); begin += kEvaluationGroup) {
    const size_t count = std::min(kEvaluationGroup, indices.size() - begin);
    ZO_ASSIGN(layout, lay_out(dataset, &indices[begin], count, /*all_candidates=*/true, evaluator_->limits()));
    const auto still = [&](uint64_t, uint64_t) { return !go_on || go_on(begin, indices.size()); };
    ZO_ASSIGN(reference, reference_of(dataset, &indices[begin], count, known, still));
    layout.reference = std::move(reference);
    std::vector<bool> is_right(layout.labels.size(), false);
    for (const Layout::Example& example : layout.examples) {
      is_right[example.first + example.target] = true;
    }
    CandidateScores scores(layout);
    for (size_t done = 0; done < layout.calls.size(); ++done) {
      if (go_on && !go_on(begin + count * done / layout.calls.size(), indices.size())) {
        return not_evaluated();
      }
      const Call& call = layout.calls[done];
      CallScalars scalars;
      scalars.seed = run_.seed();
      ZO_TRY(evaluator_->run(call, scalars, *slots_, state, /*next=*/false));
      scores.add(call, evaluator_->logprobs(0));
      for (size_t i = 0; i < call.owners.size(); ++i) {
        if (is_right[call.owners[i]]) {
          ++labels;
          argmax += evaluator_->is_argmax()[i] > 0.5f ? 1 : 0;
        }
      }
    }
    for (size_t i = 0; i < layout.examples.size(); ++i) {
      loss += scores.loss(i, objective);
      margin += of_pairs(objective.loss) ? scores.margin(i, objective) : 0;
      if (layout.examples[i].count > 1) {
        ++with_choices;
        right += scores.right(i, objective) ? 1 : 0;
      }
    }
  }
  Evaluation result;
  result.examples = dataset.size();
  result.loss = loss / static_cast<double>(dataset.size());
  result.accuracy = with_choices == 0 ? std::nan("") : static_cast<double>(right) / static_cast<double>(with_choices);
  result.token_accuracy = static_cast<double>(argmax) / static_cast<double>(labels);
  result.margin = of_pairs(objective.loss) ? margin / static_cast<double>(dataset.size()) : std::nan("");
  return result;
}

Result<std::vector<std::vector<CandidateScore>>> Session::score(const Dataset& dataset, const GoOn& go_on) {
  return or_fall_back([&]() -> Result<std::vector<std::vector<CandidateScore>>> {
    ZO_TRY(check_tokens(dataset));
    ZO_ASSIGN(state, finished());
    std::vector<uint64_t> all(dataset.size());
    std::iota(all.begin(), all.end(), 0);
    return score_with(state, dataset, all.data(), all.size(), go_on);
  });
}

}  // namespace zoexport
