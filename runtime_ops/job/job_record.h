// job.json: what a job was asked for and what it has found, for the process that continues it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "session/result.h"

namespace zoexport {

struct JobRecord {
  // Options "job", with absolute paths.
  std::string bundle;
  std::string data;
  std::string held_out;  // empty: none; then evaluations before and after are on data
  uint64_t steps = 0;
  nlohmann::json settings = nlohmann::json::object();    // of the run, by key
  nlohmann::json validation = nlohmann::json::object();  // eval_every, patience and keep, if given
  bool evaluate = false;
  std::string engine;  // empty: that of the job's options

  bool change = false;    // the user wants the state to continue with this request
  std::string bundle_id;  // names the state's folder
  bool done = false;
  nlohmann::json before;  // evaluations; null: not made yet
  nlohmann::json after;
};

// The request as zo_job_request gives it.
nlohmann::json encode_request(const JobRecord& record);

// Stores paths within `folder` relative to it, since an app's folders move with its updates.
Status write_job(const std::string& folder, const JobRecord& record);
// None if there is no file.
Result<std::optional<JobRecord>> read_job(const std::string& folder);
Status remove_job(const std::string& folder);

// The folder of the state of a bundle.
std::string state_of_job(const std::string& folder, const std::string& bundle_id);

}  // namespace zoexport
