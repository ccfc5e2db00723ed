// evaluations.json of a state folder: what a run found on held-out examples while it trained (docs/formats.md, "JSON files of a run").
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "session/result.h"
#include "session/state/run_record.h"

namespace zoexport {

struct ValidationSettings {
  uint32_t every = 0;      // steps from one evaluation to the next
  uint32_t patience = 0;   // evaluations in a row without a lower loss, after which training ends; 0: it does not
  bool keep_best = false;  // who reads the state gets the values of the best evaluation
};

struct Evaluation {
  double loss = 0;
  double accuracy = 0;  // NaN if no example has choices
  double token_accuracy = 0;
  uint64_t examples = 0;
  double margin = 0;  // mean preference for the chosen response; NaN unless the loss is one of pairs
};

// {"loss", "accuracy", "token_accuracy", "margin"}.
nlohmann::json encode_evaluation(const Evaluation& evaluation);

struct Evaluated {
  uint64_t step = 0;  // steps that were taken
  Evaluation found;
};

struct Evaluations {
  ValidationSettings settings;
  RunData data;
  std::vector<Evaluated> made;  // by ascending steps

  // The one of the lowest loss, the first of equal ones; of the untrained values (step 0) none is. Null: there is none.
  const Evaluated* best() const;
  bool has(uint64_t step) const;
  // Return whether `patience` evaluations have followed the best one.
  bool ended() const;
  // Forgets those of more steps.
  void cut(uint64_t steps);
};

// Refuses to continue with other settings or examples.
Status check_validation(const std::string& state, const Evaluations& known, const Evaluations& now);

nlohmann::json encode_evaluations(const Evaluations& evaluations);
Result<Evaluations> read_evaluations(const std::string& path);

}  // namespace zoexport
