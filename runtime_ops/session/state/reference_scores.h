// reference.json of a state folder: what the reference model gives to the answers of pairs (docs/formats.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "session/result.h"
#include "session/state/run_record.h"

namespace zoexport {

// The sums of log-probabilities of each example's two candidates in turn.
struct ReferenceScores {
  RunData data;
  std::vector<double> scores;
};

nlohmann::json encode_reference(const std::string& bundle_id, const std::vector<ReferenceScores>& sets);
Result<std::vector<ReferenceScores>> read_reference(const std::string& path, const std::string& bundle_id);

}  // namespace zoexport
