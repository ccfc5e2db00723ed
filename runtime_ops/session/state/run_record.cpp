#include "session/state/run_record.h"

#include "session/state/sealed_json.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

using nlohmann::json;

constexpr int64_t kRunSchema = 1;
const char* const kData = "data";
const char* const kTotalSteps = "total_steps";

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string text_of(const std::string& key, const json& value, const std::optional<RunData>& data) {
  if (key != kData) {
    return key + " " + text_of(value);
  }
  return std::to_string(data ? data->examples : 0) + " examples of digest " + text_of(value).substr(0, 12);
}

}  // namespace

std::vector<RunChange> changes_between(const RunRecord& record, const RunRecord& now, uint64_t step) {
  std::vector<RunChange> changes;
  for (const auto& [key, value] : now.settings.items()) {
    const auto before = record.settings.find(key);
    if (before != record.settings.end() && *before != value) {
      changes.push_back({step, key, *before, value});
    }
  }
  if (record.data && now.data && record.data->sha256 != now.data->sha256) {
    changes.push_back({step, kData, record.data->sha256, now.data->sha256});
  }
  return changes;
}

Status check_changes(const std::string& state, const RunRecord& record, const RunRecord& now,
                     const std::vector<RunChange>& changes) {
  std::string found, expected;
  for (const RunChange& change : changes) {
    if (change.key == kTotalSteps) {
      continue;
    }
    const char* separator = found.empty() ? "" : ", ";
    found += separator + text_of(change.key, change.before, record.data);
    expected += separator + text_of(change.key, change.after, now.data);
  }
  if (found.empty()) {
    return {};
  }
  return Failure{ZO_STATE_ERROR, state, "a run with " + found, expected,
                 "Leave out what differs to go on with the run, take another state, or let it go on with the new "
                 "values: --change-settings (option change_settings)."};
}

json encode_run(const RunRecord& record) {
  json document = {{"schema_version", kRunSchema}, {"settings", record.settings}, {"changes", json::array()}};
  if (record.data) {
    document[kData] = {{"sha256", record.data->sha256}, {"examples", record.data->examples}};
    if (record.data->conversations) {
      document[kData]["conversations"] = *record.data->conversations;
    }
  }
  for (const RunChange& change : record.changes) {
    document["changes"].push_back(
        {{"step", change.step}, {"key", change.key}, {"old", change.before}, {"new", change.after}});
  }
  return sealed(std::move(document));
}

Result<RunRecord> read_run(const std::string& path) {
  ZO_ASSIGN(document, read_sealed(path, kRunSchema, "the settings of the run", kRunFix));
  JsonProblems problems(ZO_STATE_ERROR, path, kRunFix);
  const JsonNode root(&document, "", &problems);
  RunRecord record;
  for (const auto& [key, value] : root.member("settings").entries()) {
    record.settings[key] = document["settings"][key];
  }
  if (root.has(kData)) {
    const JsonNode data = root.member(kData);
    record.data =
        RunData{data.member("sha256").text(), static_cast<uint64_t>(data.member("examples").integer(0, INT64_MAX))};
    if (data.has("conversations")) {
      record.data->conversations = static_cast<uint64_t>(data.member("conversations").integer(0, INT64_MAX));
    }
  }
  const std::vector<JsonNode> changes = root.member("changes").items();
  for (size_t i = 0; i < changes.size(); ++i) {
    RunChange change;
    change.step = static_cast<uint64_t>(changes[i].member("step").integer(0, INT64_MAX));
    change.key = changes[i].member("key").text();
    ZO_TRY(problems.status());
    change.before = document["changes"][i].value("old", json());
    change.after = document["changes"][i].value("new", json());
    record.changes.push_back(std::move(change));
  }
  ZO_TRY(problems.status());
  return record;
}

}  // namespace zoexport
