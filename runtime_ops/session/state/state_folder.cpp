#include "session/state/state_folder.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>

#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

constexpr int64_t kStateSchema = 1;
const char* const kPrefix = "snapshot-";
const char* const kSuffix = ".safetensors";

std::string state_file(const std::string& folder) { return join(folder, "state.json"); }
std::string log_file(const std::string& folder) { return join(folder, "trajectory.log"); }

std::vector<std::string> list(const std::string& folder) {
  std::vector<std::string> names;
  DIR* directory = ::opendir(folder.c_str());
  if (directory == nullptr) {
    return names;
  }
  while (const dirent* entry = ::readdir(directory)) {
    names.emplace_back(entry->d_name);
  }
  ::closedir(directory);
  return names;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

struct Identity {
  std::string bundle_id;
  std::string method;
  uint64_t seed;
};

Result<Identity> read_identity(const std::string& folder) {
  const std::string path = state_file(folder);
  const std::string fix = "Restore the state from a copy, or start again in another folder.";
  ZO_ASSIGN(text, read_file(path, ZO_STATE_ERROR));
  ZO_ASSIGN(document, parse_json(text.data(), text.data() + text.size(), ZO_STATE_ERROR, path, fix));
  JsonProblems problems(ZO_STATE_ERROR, path, fix);
  const JsonNode root(&document, "", &problems);
  const int64_t schema = root.member("schema_version").integer(1, INT32_MAX);
  if (problems.status().ok() && schema > kStateSchema) {
    return Failure{ZO_STATE_ERROR, path, "schema_version " + std::to_string(schema),
                   "at most " + std::to_string(kStateSchema), "Update zoexport, or start again in another folder."};
  }
  Identity identity{root.member("bundle_id").text(), root.member("method").text(),
                    root.member("seed").unsigned_integer()};
  ZO_TRY(problems.status());
  return identity;
}

Failure other_bundle(const std::string& path, const std::string& found, const std::string& expected) {
  return {ZO_STATE_ERROR, path, "the state of bundle " + found.substr(0, 16) + "...",
          "a state of this bundle, " + expected.substr(0, 16) + "...",
          "Use the bundle that it was trained with, or another state folder."};
}

}  // namespace

uint64_t snapshot_every(uint64_t words) {
  constexpr uint64_t kWords = uint64_t{1} << 34, kLeast = 10, kMost = 100;
  return std::clamp(kWords / std::max<uint64_t>(words, 1), kLeast, kMost);
}

Status StateFolder::create(const std::string& path, uint64_t seed, const Manifest& manifest, uint32_t queries) {
  // state.json comes last: without it there is no state, so a creation that was cut short is simply repeated.
  const std::string log = log_file(path);
  if (exists(log)) {
    ZO_ASSIGN(bytes, read_file(log, ZO_STATE_ERROR));
    if (bytes.size() > kLogHeaderBytes) {
      return Failure{ZO_STATE_ERROR, path, "a trajectory.log with steps, but no state.json", "both or neither",
                     "Restore state.json from a copy, or use another state folder."};
    }
  }
  const std::string header = encode_header({manifest.bundle_id, seed, queries});
  ZO_TRY(write_file(log, [&](int descriptor) { return write_all(descriptor, header.data(), header.size()); }));
  nlohmann::json document = {
      {"bundle_id", manifest.bundle_id}, {"method", manifest.method}, {"schema_version", kStateSchema}, {"seed", seed}};
  const std::string text = document.dump(1) + "\n";
  return write_file(state_file(path), [&](int descriptor) { return write_all(descriptor, text.data(), text.size()); });
}

Result<StateFolder::Opened> StateFolder::attach(const std::string& path, int32_t mode, const uint64_t* seed,
                                                const Manifest& manifest, uint32_t queries) {
  StateFolder folder(path, manifest.bundle_id);
  if (mode == ZO_STATE_TRAIN) {
    ZO_TRY(make_folder(path));
    ZO_ASSIGN(lock, FolderLock::acquire(join(path, "lock")));
    folder.lock_.emplace(std::move(lock));
    if (!exists(state_file(path))) {
      ZO_TRY(create(path, seed != nullptr ? *seed : manifest.settings.seed, manifest, queries));
    }
    folder.remove_leftovers();
  } else if (!exists(state_file(path))) {
    return Failure{ZO_STATE_ERROR, path, exists(path) ? "no state.json" : "no such folder", "a state folder",
                   "Check the path; training writes states."};
  }
  ZO_ASSIGN(identity, read_identity(path));
  if (identity.bundle_id != manifest.bundle_id) {
    return other_bundle(path, identity.bundle_id, manifest.bundle_id);
  }
  if (seed != nullptr && *seed != identity.seed) {
    return Failure{ZO_STATE_ERROR, path, "seed " + std::to_string(identity.seed), "seed " + std::to_string(*seed),
                   "Leave the seed out to resume this run, or use another state folder."};
  }
  const std::string log_path = log_file(path);
  ZO_ASSIGN(bytes, read_file(log_path, ZO_STATE_ERROR));
  ZO_ASSIGN(log, parse_log(bytes, log_path));
  if (log.header.bundle_id != manifest.bundle_id) {
    return other_bundle(log_path, log.header.bundle_id, manifest.bundle_id);
  }
  if (log.header.seed != identity.seed || log.header.queries != queries) {
    return Failure{ZO_STATE_ERROR, log_path,
                   "seed " + std::to_string(log.header.seed) + ", queries " + std::to_string(log.header.queries),
                   "seed " + std::to_string(identity.seed) + ", queries " + std::to_string(queries),
                   "Restore the state from a copy, or start again in another folder."};
  }
  if (mode == ZO_STATE_TRAIN) {
    ZO_ASSIGN(file, LogFile::open(log_path, log.valid_bytes, queries));
    folder.log_.emplace(std::move(file));
  }
  return Opened{std::move(folder), identity.seed, std::move(log.records)};
}

Result<std::vector<Record>> StateFolder::read_records() const {
  ZO_ASSIGN(bytes, read_file(log_file(path_), ZO_STATE_ERROR));
  ZO_ASSIGN(log, parse_log(bytes, log_file(path_)));
  return std::move(log.records);
}

std::string StateFolder::snapshot_path(uint64_t steps) const {
  return join(path_, kPrefix + std::to_string(steps) + kSuffix);
}

std::vector<uint64_t> StateFolder::snapshots() const {
  std::vector<uint64_t> found;
  for (const std::string& name : list(path_)) {
    if (name.rfind(kPrefix, 0) != 0 || !ends_with(name, kSuffix)) {
      continue;
    }
    const size_t start = std::char_traits<char>::length(kPrefix);
    const std::string digits = name.substr(start, name.size() - start - std::char_traits<char>::length(kSuffix));
    if (!digits.empty() && digits.size() <= 10 && digits.find_first_not_of("0123456789") == std::string::npos) {
      found.push_back(std::stoull(digits));
    }
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

Result<SafeTensors> StateFolder::read_snapshot(uint64_t steps) const {
  const std::string path = snapshot_path(steps);
  ZO_ASSIGN(file, SafeTensors::open(path, ZO_STATE_ERROR));
  if (file.metadata("bundle_id") != bundle_id_ || file.metadata("steps") != std::to_string(steps) ||
      file.metadata("crc32") != crc_text(file.data_crc())) {
    return Failure{ZO_STATE_ERROR, path, "a damaged snapshot, or one of another run", "a snapshot of this state",
                   "Remove it; the run continues from an older one."};
  }
  return file;
}

Status StateFolder::write_snapshot(uint64_t steps, const std::vector<TensorToWrite>& tensors) {
  ZO_TRY(
      write_safetensors(snapshot_path(steps), tensors, {{"bundle_id", bundle_id_}, {"steps", std::to_string(steps)}}));
  const std::vector<uint64_t> found = snapshots();
  for (size_t i = 2; i < found.size(); ++i) {
    ::unlink(snapshot_path(found[i]).c_str());
  }
  return {};
}

void StateFolder::remove_snapshots_after(uint64_t steps) {
  for (uint64_t found : snapshots()) {
    if (found > steps) {
      ::unlink(snapshot_path(found).c_str());
    }
  }
}

Status StateFolder::write_initial(const std::vector<TensorToWrite>& tensors) {
  return write_safetensors(initial_path(), tensors, {{"bundle_id", bundle_id_}});
}

void StateFolder::remove_leftovers() const {
  for (const std::string& name : list(path_)) {
    if (ends_with(name, ".tmp")) {
      ::unlink(join(path_, name).c_str());
    }
  }
}

}  // namespace zoexport
