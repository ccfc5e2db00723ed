// job.json: what a job was asked for and what it has found, for the process that goes on with it.
#pragma once

#include <optional>
#include <string>

#include "session/result.h"
#include "zoexport/job.h"

namespace zoexport {

struct JobRecord {
  std::string bundle;
  std::string data;
  std::string held_out;  // empty: none; then evaluations before and after are on data
  uint64_t steps = 0;
  double lr = 0;  // 0: that of the run, or of the bundle
  bool evaluate = false;
  // As zo_train_options has them.
  uint32_t eval_every = 0;
  uint32_t patience = 0;
  int32_t keep = ZO_KEEP_DEFAULT;
  std::string engine_name;  // empty: that of the options that it is run with
  bool change = false;      // the person wants the state to go on with what is asked for
  std::string bundle_id;    // which names the state's folder
  bool done = false;
  std::optional<zo_evaluation> before;
  std::optional<zo_evaluation> after;
};

// Paths within `folder` are written as such, since an app's folders move with its updates.
Status write_job(const std::string& folder, const JobRecord& record);
// None where there is no file.
Result<std::optional<JobRecord>> read_job(const std::string& folder);
Status remove_job(const std::string& folder);

// The folder of the state of a bundle.
std::string state_of_job(const std::string& folder, const std::string& bundle_id);

}  // namespace zoexport
