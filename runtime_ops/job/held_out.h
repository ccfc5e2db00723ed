// Evaluations of a job's run on validation examples, as its state stores them (docs/formats.md, "JSON files of a run").
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "job/job_record.h"
#include "session/result.h"
#include "zoexport/job.h"

namespace zoexport {

class HeldOut {
 public:
  HeldOut() = default;
  // From the result of zo_state_describe.
  explicit HeldOut(const nlohmann::json& state);

  // The run that continues from here as asked, on these examples (null: none).
  Result<HeldOut> with(const JobRecord& asked, const zo_dataset* examples) const;

  // Return whether a run refuses `now`, or asks for permission.
  bool is_other(const HeldOut& now) const;
  // A description for a question, if `now` is other.
  std::string told(const HeldOut& now) const;
  // True if patience has ended the run.
  bool ended() const { return ended_; }

  // Adds an entry of zo_session_evaluations in place of those from its step on.
  void add(const nlohmann::json& evaluated);
  // Entries by ascending steps.
  const nlohmann::json& made() const { return made_; }
  // The step of the best one, or null.
  nlohmann::json best_step() const;
  // The evaluation before the first step, and that of the weights that readers of the state get; or null.
  nlohmann::json untrained() const;
  nlohmann::json kept() const;

 private:
  const nlohmann::json* best() const;
  nlohmann::json evaluation(const nlohmann::json* one) const;

  std::string sha256_;  // empty: there are none
  uint64_t examples_ = 0;
  uint64_t every_ = 0;
  uint64_t patience_ = 0;
  bool keep_best_ = true;
  bool begun_ = false;  // else another run may take the place of this one
  bool ended_ = false;
  nlohmann::json made_ = nlohmann::json::array();
};

}  // namespace zoexport
