#include "job/job_record.h"

#include <unistd.h>

#include "session/storage/files.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

using nlohmann::json;

constexpr int64_t kSchema = 2;
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

json object_in(const JsonNode& node) {
  if (!node.is_object()) {
    node.problem("an object");
    return json::object();
  }
  return node.value();
}

}  // namespace

json encode_request(const JobRecord& record) {
  json request = record.validation;
  request.update({{"bundle", record.bundle},
                  {"data", record.data},
                  {"held_out", record.held_out.empty() ? json() : json(record.held_out)},
                  {"steps", record.steps},
                  {"settings", record.settings},
                  {"evaluate", record.evaluate},
                  {"engine", record.engine.empty() ? json() : json(record.engine)}});
  return request;
}

Status write_job(const std::string& folder, const JobRecord& record) {
  const json document = {{"schema_version", kSchema},
                         {"bundle", kept(folder, record.bundle)},
                         {"data", kept(folder, record.data)},
                         {"held_out", kept(folder, record.held_out)},
                         {"steps", record.steps},
                         {"settings", record.settings},
                         {"validation", record.validation},
                         {"evaluate", record.evaluate},
                         {"engine", record.engine},
                         {"change", record.change},
                         {"bundle_id", record.bundle_id},
                         {"done", record.done},
                         {"before", record.before},
                         {"after", record.after}};
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
  root.member("schema_version").integer(kSchema, kSchema);
  JobRecord record;
  record.bundle = found(folder, root.member("bundle").text());
  record.data = found(folder, root.member("data").text());
  record.held_out = found(folder, root.member("held_out").text());
  record.steps = static_cast<uint64_t>(root.member("steps").integer(1, INT64_MAX));
  record.settings = object_in(root.member("settings"));
  record.validation = object_in(root.member("validation"));
  record.evaluate = root.member("evaluate").boolean();
  record.engine = root.member("engine").text();
  record.change = root.member("change").boolean();
  record.bundle_id = root.member("bundle_id").text();
  record.done = root.member("done").boolean();
  for (const auto& [key, target] : {std::pair("before", &record.before), std::pair("after", &record.after)}) {
    if (root.has(key)) {
      *target = object_in(root.member(key));
    }
  }
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
