#include "job/job_record.h"

#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "session/storage/files.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

using nlohmann::json;

constexpr int64_t kSchema = 1;
constexpr char kFile[] = "job.json";
constexpr size_t kIdDigits = 16;
const char* const kFix = "Remove the file, and start again; states are kept.";

std::string job_path(const std::string& folder) { return join(folder, kFile); }

std::string kept(const std::string& folder, const std::string& path) {
  const std::string within = folder + "/";
  return path.compare(0, within.size(), within) == 0 ? path.substr(within.size()) : path;
}

std::string found(const std::string& folder, const std::string& path) {
  return path.empty() || path[0] == '/' ? path : join(folder, path);
}

json number(double value) { return std::isfinite(value) ? json(value) : json(); }

json encoded(const zo_evaluation& evaluation) {
  return {{"loss", number(evaluation.loss)},
          {"accuracy", number(evaluation.accuracy)},
          {"token_accuracy", number(evaluation.token_accuracy)},
          {"margin", number(evaluation.margin)},
          {"examples", evaluation.examples}};
}

double number(const JsonNode& node) {
  return node.is_null() ? std::numeric_limits<double>::quiet_NaN() : node.number();
}

int64_t number_in(const JsonNode& root, const char* key, int64_t most) {
  return root.has(key) ? root.member(key).integer(0, most) : 0;
}

std::optional<zo_evaluation> decoded(const JsonNode& root, const char* key) {
  if (!root.has(key)) {
    return std::nullopt;
  }
  const JsonNode node = root.member(key);
  return zo_evaluation{sizeof(zo_evaluation), number(node.member("loss")), number(node.member("accuracy")),
                       number(node.member("token_accuracy")),
                       static_cast<uint64_t>(node.member("examples").integer(0, INT64_MAX)),
                       // Earlier jobs have none.
                       node.has("margin") ? node.member("margin").number() : std::numeric_limits<double>::quiet_NaN()};
}

}  // namespace

Status write_job(const std::string& folder, const JobRecord& record) {
  json document = {{"schema_version", kSchema},
                   {"bundle", kept(folder, record.bundle)},
                   {"data", kept(folder, record.data)},
                   {"held_out", kept(folder, record.held_out)},
                   {"steps", record.steps},
                   {"lr", record.lr},
                   {"evaluate", record.evaluate},
                   {"eval_every", record.eval_every},
                   {"patience", record.patience},
                   {"keep", record.keep},
                   {"engine_name", record.engine_name},
                   {"change", record.change},
                   {"bundle_id", record.bundle_id},
                   {"done", record.done}};
  if (record.before) {
    document["before"] = encoded(*record.before);
  }
  if (record.after) {
    document["after"] = encoded(*record.after);
  }
  const std::string text = document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  return write_file(job_path(folder), [&](int descriptor) { return write_all(descriptor, text.data(), text.size()); });
}

Result<std::optional<JobRecord>> read_job(const std::string& folder) {
  const std::string path = job_path(folder);
  if (!exists(path)) {
    return std::optional<JobRecord>();
  }
  ZO_ASSIGN(text, read_file(path, ZO_STATE_ERROR));
  ZO_ASSIGN(document, parse_json(text.data(), text.data() + text.size(), ZO_STATE_ERROR, path, kFix));
  JsonProblems problems(ZO_STATE_ERROR, path, kFix);
  const JsonNode root(&document, "", &problems);
  const int64_t schema = root.member("schema_version").integer(1, INT32_MAX);
  ZO_TRY(problems.status());
  if (schema > kSchema) {
    return Failure{ZO_STATE_ERROR, path, "schema_version " + std::to_string(schema),
                   "at most " + std::to_string(kSchema), "Update the app."};
  }
  JobRecord record;
  record.bundle = found(folder, root.member("bundle").text());
  record.data = found(folder, root.member("data").text());
  record.held_out = found(folder, root.member("held_out").text());
  record.steps = static_cast<uint64_t>(root.member("steps").integer(1, INT64_MAX));
  record.lr = root.member("lr").number();
  record.evaluate = root.member("evaluate").boolean();
  // Not there at first.
  record.eval_every = static_cast<uint32_t>(number_in(root, "eval_every", UINT32_MAX));
  record.patience = static_cast<uint32_t>(number_in(root, "patience", UINT32_MAX));
  record.keep = static_cast<int32_t>(number_in(root, "keep", ZO_KEEP_BEST));
  record.engine_name = root.has("engine_name") ? root.member("engine_name").text() : "";
  record.change = root.member("change").boolean();
  record.bundle_id = root.member("bundle_id").text();
  record.done = root.member("done").boolean();
  record.before = decoded(root, "before");
  record.after = decoded(root, "after");
  // It names a folder.
  if (record.bundle_id.size() != 64 || record.bundle_id.find_first_not_of("0123456789abcdef") != std::string::npos) {
    root.member("bundle_id").problem("64 hexadecimal digits");
  }
  ZO_TRY(problems.status());
  return std::optional<JobRecord>(std::move(record));
}

Status remove_job(const std::string& folder) {
  const std::string path = job_path(folder);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return system_failure(ZO_STATE_ERROR, path, errno, true);
  }
  return sync_folder(folder);
}

std::string state_of_job(const std::string& folder, const std::string& bundle_id) {
  return join(join(folder, "states"), bundle_id.substr(0, kIdDigits));
}

}  // namespace zoexport
