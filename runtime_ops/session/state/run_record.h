// run.json of a state folder: the settings and the data that its steps were taken with (docs/formats.md, "JSON files of a run").
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "session/manifest/manifest.h"

namespace zoexport {

// A setting that changed at step `step`.
struct RunChange {
  uint64_t step = 0;
  std::string key;
  nlohmann::json before;
  nlohmann::json after;
};

// The examples that a run is trained on.
struct RunData {
  std::string sha256;  // Dataset::digest()
  uint64_t examples = 0;
  std::optional<uint64_t> conversations = std::nullopt;  // examples that the chat template wrote; unknown of tokens

  bool operator==(const RunData& other) const { return sha256 == other.sha256 && examples == other.examples; }
};

struct RunRecord {
  nlohmann::json settings = nlohmann::json::object();  // RunSettings::kept
  std::optional<RunData> data;                         // not known of a run whose host chose the examples of each step
  std::vector<RunChange> changes;
};

// Remedy for a record that cannot be used.
inline constexpr char kRunFix[] =
    "Restore it from a copy; without it the run goes on with the settings that are asked for.";

// Return the differences of `now` from `record`, in effect from `step`. Keys missing on either side do not count.
std::vector<RunChange> changes_between(const RunRecord& record, const RunRecord& now, uint64_t step);

// Refuses to go on with other values unasked, but for the number of steps, which every call states. `state` is the run's
// folder.
Status check_changes(const std::string& state, const RunRecord& record, const RunRecord& now,
                     const std::vector<RunChange>& changes);

// Return the file's content, with a CRC-32 of the rest.
nlohmann::json encode_run(const RunRecord& record);
Result<RunRecord> read_run(const std::string& path);

}  // namespace zoexport
