#include "session/state/run_record.h"

#include <cmath>

#include "session/state/sealed_json.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

using nlohmann::json;

constexpr int64_t kRunSchema = 1;
const char* const kData = "data";
const char* const kTotalSteps = "total_steps";
const char* const kChoices = "choices";
const char* const kDpoBeta = "dpo.beta";
const char* const kOrpoBeta = "orpo.beta";
const char* const kFix = "Restore it from a copy; without it the run goes on with the settings that are asked for.";

const char* const kSchedules[] = {"constant", "linear", "cosine"};
const char* const kChoicesWords[] = {"sum", "mean"};
const char* const kLossWords[] = {"full", "choices", "dpo", "orpo"};
const char* const kDifferences[] = {"central", "forward"};

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string text_of(const std::string& key, const json& value, const std::optional<RunData>& data) {
  if (key != kData) {
    return key + " " + text_of(value);
  }
  return std::to_string(data ? data->examples : 0) + " examples of digest " + text_of(value).substr(0, 12);
}

// Reads one setting of a kind, where the record has it.
class Reader {
 public:
  Reader(const json& settings, JsonProblems& problems) : node_(&settings, "settings", &problems) {}

  void number(const char* key, double& target) const {
    if (node_.has(key)) {
      target = node_.member(key).number();
    }
  }
  template <typename T>
  void count(const char* key, T& target, int64_t least) const {
    if (node_.has(key)) {
      const auto most = sizeof(T) == 4 ? int64_t{UINT32_MAX} : INT64_MAX;
      target = static_cast<T>(node_.member(key).integer(least, most));
    }
  }
  void word(const char* key, int32_t& target, int32_t (*parse)(const std::string&), const char* expected) const {
    if (node_.has(key)) {
      const int32_t value = parse(node_.member(key).text());
      if (value < 0) {
        node_.member(key).problem(expected);
      }
      target = value;
    }
  }

 private:
  JsonNode node_;
};

}  // namespace

json settings_of_run(const RunSettings& run, bool first_order) {
  json settings = {{"lr", run.lr},
                   {"lr_schedule", kSchedules[run.schedule]},
                   {"warmup", run.warmup},
                   {"loss", kLossWords[run.loss]},
                   {"batch", run.batch},
                   {"accumulate", run.accumulate},
                   {"pack", run.pack ? "on" : "off"}};
  if (run.schedule != ZO_SCHEDULE_CONSTANT) {
    settings[kTotalSteps] = run.total_steps;
  }
  if (run.loss == ZO_LOSS_CHOICES) {
    settings[kChoices] = kChoicesWords[run.choices];
  } else if (run.loss == ZO_LOSS_DPO) {
    settings[kDpoBeta] = run.dpo_beta;
  } else if (run.loss == ZO_LOSS_ORPO) {
    settings[kOrpoBeta] = run.orpo_beta;
  }
  if (first_order) {
    settings.update({{"momentum", run.momentum}, {"weight_decay", run.weight_decay}, {"clip", run.clip}});
  } else {
    settings.update({{"eps", run.eps}, {"difference", kDifferences[run.difference]}});
  }
  return settings;
}

Status take_settings(const RunRecord& record, const std::string& path, RunSettings& run) {
  JsonProblems problems(ZO_STATE_ERROR, path, kFix);
  const Reader reader(record.settings, problems);
  RunSettings taken = run;
  reader.number("lr", taken.lr);
  reader.number("eps", taken.eps);
  reader.number("momentum", taken.momentum);
  reader.number("weight_decay", taken.weight_decay);
  reader.number("clip", taken.clip);
  reader.number(kDpoBeta, taken.dpo_beta);
  reader.number(kOrpoBeta, taken.orpo_beta);
  reader.count("warmup", taken.warmup, 0);
  reader.count("batch", taken.batch, 1);
  reader.count("accumulate", taken.accumulate, 1);
  reader.count(kTotalSteps, taken.total_steps, 0);
  reader.word("lr_schedule", taken.schedule, schedule_from_text, "constant, linear or cosine");
  reader.word("loss", taken.loss, loss_from_text, kLosses);
  reader.word(kChoices, taken.choices, choice_score_from_text, kChoiceScores);
  int32_t pack = taken.pack ? 1 : 0;
  reader.word("pack", pack, switch_from_text, "on or off");
  taken.pack = pack == 1;
  reader.word("difference", taken.difference, difference_from_text, "central or forward");
  ZO_TRY(problems.status());
  run = taken;
  return {};
}

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
                 "values: --change-settings (change_settings of zo_attach_options)."};
}

json encode_run(const RunRecord& record) {
  json document = {{"schema_version", kRunSchema}, {"settings", record.settings}, {"changes", json::array()}};
  if (record.data) {
    document[kData] = {{"sha256", record.data->sha256}, {"examples", record.data->examples}};
  }
  for (const RunChange& change : record.changes) {
    document["changes"].push_back(
        {{"step", change.step}, {"key", change.key}, {"old", change.before}, {"new", change.after}});
  }
  return sealed(std::move(document));
}

Result<RunRecord> read_run(const std::string& path) {
  ZO_ASSIGN(document, read_sealed(path, kRunSchema, "the settings of the run", kFix));
  JsonProblems problems(ZO_STATE_ERROR, path, kFix);
  const JsonNode root(&document, "", &problems);
  RunRecord record;
  for (const auto& [key, value] : root.member("settings").entries()) {
    record.settings[key] = document["settings"][key];
  }
  if (root.has(kData)) {
    const JsonNode data = root.member(kData);
    record.data =
        RunData{data.member("sha256").text(), static_cast<uint64_t>(data.member("examples").integer(0, INT64_MAX))};
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
