// What a job's run finds on held-out examples while it trains, as its state keeps it (docs/session.md, "Validation").
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "job/job_record.h"
#include "session/result.h"
#include "zoexport/job.h"

namespace zoexport {

class HeldOut {
 public:
  HeldOut() = default;
  // As zo_state_describe has it; of a state without held-out examples nothing.
  explicit HeldOut(const nlohmann::json& state);

  // Of the run that goes on from here with what is asked for, on these examples (null: none).
  Result<HeldOut> with(const JobRecord& asked, const zo_dataset* examples) const;

  // Whether a run is refused, or asked for, with `now` in its place.
  bool is_other(const HeldOut& now) const;
  // In words, for a question where `now` is other.
  std::string told(const HeldOut& now) const;
  // Whether patience has ended the run.
  bool ended() const { return ended_; }

  // In place of those from its step on.
  void add(const zo_evaluated& evaluated);
  // By ascending steps; the best is marked.
  const std::vector<zo_evaluated>& made() const { return made_; }
  const zo_evaluated* best() const;
  // Of the values before the first step, and of those that who reads the state gets.
  std::optional<zo_evaluation> untrained() const;
  std::optional<zo_evaluation> kept() const;

 private:
  std::optional<zo_evaluation> evaluation(const zo_evaluated* one) const;

  std::string sha256_;  // empty: there are none
  uint64_t examples_ = 0;
  uint32_t every_ = 0;
  uint32_t patience_ = 0;
  bool keep_best_ = true;
  bool begun_ = false;  // else another run may take the place of this one
  bool ended_ = false;
  std::vector<zo_evaluated> made_;
};

}  // namespace zoexport
