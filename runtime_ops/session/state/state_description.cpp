#include "session/state/state_description.h"

#include "session/state/state_folder.h"

namespace zoexport {

Result<nlohmann::json> describe_state(const std::string& path) {
  if (!holds_state(path)) {
    return Failure{ZO_STATE_ERROR, path, exists(path) ? "no state.json" : "no such folder", "a state folder",
                   "Check the path; training writes states."};
  }
  ZO_ASSIGN(identity, read_identity(path));
  ZO_ASSIGN(bytes, read_file(log_path(path), ZO_STATE_ERROR));
  ZO_ASSIGN(log, parse_log(bytes, log_path(path)));
  if (log.header.bundle_id != identity.bundle_id || log.header.seed != identity.seed) {
    return Failure{ZO_STATE_ERROR, log_path(path), "the log of another state", "that of " + path,
                   "Restore the state from a copy."};
  }
  nlohmann::json run;
  if (exists(run_path(path))) {
    ZO_ASSIGN(record, read_run(run_path(path)));
    run = encode_run(record);
  }
  nlohmann::json evaluations;
  if (exists(evaluations_path(path))) {
    ZO_ASSIGN(found, read_evaluations(evaluations_path(path)));
    found.cut(log.records.size());
    evaluations = encode_evaluations(found);
    evaluations.erase("crc32");
    evaluations.erase("schema_version");
    const Evaluated* const best = found.best();
    evaluations["ended"] = found.ended();
    evaluations["best_step"] = best == nullptr ? nlohmann::json() : nlohmann::json(best->step);
  }
  const auto of_run = [&](const char* key, nlohmann::json otherwise) {
    return run.is_object() && run.contains(key) ? run[key] : std::move(otherwise);
  };
  return nlohmann::json{{"bundle_id", identity.bundle_id},
                        {"method", identity.method},
                        {"seed", identity.seed},
                        {"steps", log.records.size()},
                        {"damage", log.damage.empty() ? nlohmann::json() : nlohmann::json(log.damage)},
                        {"settings", of_run("settings", nullptr)},
                        {"data", of_run("data", nullptr)},
                        {"validation", std::move(evaluations)},
                        {"changes", of_run("changes", nlohmann::json::array())},
                        {"imported", exists(initial_path(path))},
                        {"snapshots", snapshots_in(path)}};
}

}  // namespace zoexport
