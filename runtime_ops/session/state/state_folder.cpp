#include "session/state/state_folder.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "session/storage/json_reader.h"
#include "session/storage/shared_file.h"

namespace zoexport {
namespace {

constexpr int64_t kStateSchema = 1;
const char* const kPrefix = "snapshot-";
const char* const kSuffix = ".safetensors";
const char* const kDamaged = ".damaged-";     // behind the log's name, and a number
const char* const kLogDigest = "log_sha256";  // of the log up to a snapshot's steps

std::string state_file(const std::string& folder) { return join(folder, "state.json"); }

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

// Return the part of a name between `prefix` and `suffix`, or nothing if the name does not have both.
std::optional<std::string> middle(const std::string& name, const std::string& prefix, const std::string& suffix) {
  const size_t around = prefix.size() + suffix.size();
  if (name.size() < around || name.compare(0, prefix.size(), prefix) != 0 ||
      name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) {
    return std::nullopt;
  }
  return name.substr(prefix.size(), name.size() - around);
}

// Return the number between `prefix` and `suffix`, in the format of this file, or nothing.
std::optional<uint64_t> number_in(const std::string& name, const std::string& prefix, const std::string& suffix) {
  const auto digits = middle(name, prefix, suffix);
  if (!digits || digits->empty() || digits->size() > 10 ||
      digits->find_first_not_of("0123456789") != std::string::npos || std::to_string(std::stoull(*digits)) != *digits) {
    return std::nullopt;
  }
  return std::stoull(*digits);
}

// Return whether a crash may have left a file of this name: a session gives no other names to files that it will rename
// or unlink.
bool is_leftover(const std::string& name) {
  const auto written = middle(name, "", temporary_name(""));
  if (!written) {
    return false;
  }
  const auto scratch = middle(*written, kScratchPrefix, "");
  if (scratch) {
    return scratch->size() == kScratchLetters &&
           std::all_of(scratch->begin(), scratch->end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  }
  return *written == "state.json" || *written == "run.json" || *written == "evaluations.json" ||
         *written == "reference.json" || *written == "trajectory.log" || *written == "initial.safetensors" ||
         number_in(*written, kPrefix, kSuffix) || number_in(*written, std::string("trajectory.log") + kDamaged, "");
}

bool is_of(const std::string& snapshot, const std::string& bundle_id) {
  const auto file = SafeTensors::open(snapshot, ZO_STATE_ERROR);
  return file.ok() && file->metadata("bundle_id") == bundle_id;
}

Failure damaged(const std::string& path, const std::string& damage, const std::string& copy) {
  return {ZO_STATE_ERROR, path, damage + (copy.empty() ? "" : "; a copy of all is in " + copy), "an undamaged log",
          "Restore the log from a backup, or train with --recover (recover of zo_attach_options): the run then goes on "
          "from "
          "the last good record before the damage."};
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

bool holds_state(const std::string& path) { return exists(state_file(path)); }

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

std::vector<uint64_t> snapshots_in(const std::string& folder) {
  std::vector<uint64_t> found;
  for (const std::string& name : list(folder)) {
    if (const auto steps = number_in(name, kPrefix, kSuffix)) {
      found.push_back(*steps);
    }
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

StateFolder::Made::Made(const std::string& path) : path(path) {
  // In the order in which they are removed: what an end in between leaves is no state.
  for (const char* name : {"state.json", "run.json", "evaluations.json", "trajectory.log", "work.bin", "lock"}) {
    if (!exists(join(path, name))) {
      files.emplace_back(name);
    }
  }
}

StateFolder::Made::~Made() {
  if (wanted) {
    return;
  }
  for (const std::string& name : files) {
    ::unlink(join(path, name).c_str());
  }
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    ::rmdir(folder->c_str());
  }
}

void StateFolder::want(bool wanted) {
  if (made_) {
    made_->wanted = wanted;
  }
}

Status StateFolder::create(uint64_t seed, const Manifest& manifest) {
  // state.json comes last: without it there is no state, so a creation that was cut short is simply repeated.
  const std::string log = log_path(path_);
  if (exists(log)) {
    ZO_ASSIGN(bytes, read_file(log, ZO_STATE_ERROR));
    if (bytes.size() > kLogHeaderBytes) {
      return Failure{ZO_STATE_ERROR, path_, "a trajectory.log with steps, but no state.json", "both or neither",
                     "Restore state.json from a copy, or use another state folder."};
    }
  }
  const std::string header = encode_header({manifest.bundle_id, seed, queries_});
  ZO_TRY(write_file(log, [&](int descriptor) { return write_all(descriptor, header.data(), header.size()); }));
  nlohmann::json document = {
      {"bundle_id", manifest.bundle_id}, {"method", manifest.method}, {"schema_version", kStateSchema}, {"seed", seed}};
  const std::string text = document.dump(1) + "\n";
  return write_file(state_file(path_), [&](int descriptor) { return write_all(descriptor, text.data(), text.size()); });
}

Result<StateFolder::Opened> StateFolder::attach(const std::string& path, const AttachOptions& options,
                                                const Manifest& manifest, uint32_t queries) {
  StateFolder folder(path, manifest.bundle_id, queries);
  if (!options.read_only) {
    auto made = std::make_unique<Made>(path);
    const Status there = make_folder(path, &made->folders);
    ZO_TRY(there);
    made->wanted = true;  // what another run has made meanwhile is not this one's to remove
    ZO_ASSIGN(lock, FolderLock::acquire(join(path, "lock")));
    folder.lock_.emplace(std::move(lock));
    if (!holds_state(path)) {
      made->wanted = false;
      folder.made_ = std::move(made);
      ZO_TRY(folder.create(options.seed.value_or(manifest.settings.seed()), manifest));
    }
    folder.remove_leftovers();
  } else if (!holds_state(path)) {
    return Failure{ZO_STATE_ERROR, path, exists(path) ? "no state.json" : "no such folder", "a state folder",
                   "Check the path; training writes states."};
  }
  ZO_ASSIGN(identity, read_identity(path));
  if (identity.bundle_id != manifest.bundle_id) {
    return other_bundle(path, identity.bundle_id, manifest.bundle_id);
  }
  if (options.seed && *options.seed != identity.seed) {
    return Failure{ZO_STATE_ERROR, path, "seed " + std::to_string(identity.seed),
                   "seed " + std::to_string(*options.seed),
                   "Leave the seed out to resume this run, or use another state folder."};
  }
  ZO_ASSIGN(records, folder.open_log(options, {manifest.bundle_id, identity.seed, queries}));
  std::optional<RunRecord> run;
  if (!options.read_only && !records.empty() && exists(folder.run_path())) {
    ZO_ASSIGN(read, read_run(folder.run_path()));
    run = std::move(read);
  }
  if (!options.read_only) {
    folder.remove_snapshots_after(records.size());
  }
  std::optional<Evaluations> evaluations;
  if (exists(evaluations_path(path))) {
    ZO_ASSIGN(read, read_evaluations(evaluations_path(path)));
    read.cut(records.size());
    evaluations = std::move(read);
  }
  return Opened{std::move(folder), identity.seed, std::move(records), std::move(run), std::move(evaluations)};
}

Result<std::vector<Record>> StateFolder::open_log(const AttachOptions& options, const LogHeader& expected) {
  const std::string path = log_path(path_);
  ZO_ASSIGN(bytes, read_file(path, ZO_STATE_ERROR));
  ZO_ASSIGN(log, parse_log(bytes, path, expected));
  if (log.header.bundle_id != expected.bundle_id) {
    return other_bundle(path, log.header.bundle_id, expected.bundle_id);
  }
  if (log.header.seed != expected.seed || log.header.queries != expected.queries) {
    return Failure{ZO_STATE_ERROR, path,
                   "seed " + std::to_string(log.header.seed) + ", queries " + std::to_string(log.header.queries),
                   "seed " + std::to_string(expected.seed) + ", queries " + std::to_string(expected.queries),
                   "Restore the state from a copy, or start again in another folder."};
  }
  if (options.read_only) {
    return log.damage.empty() ? Result<std::vector<Record>>(std::move(log.records)) : damaged(path, log.damage, "");
  }
  if (!log.damage.empty()) {
    ZO_ASSIGN(copy, keep_damaged(bytes));
    if (!options.recover) {
      return damaged(path, log.damage, copy);
    }
    const std::string good =
        encode_header(log.header) +
        (log.records.empty() ? "" : bytes.substr(kLogHeaderBytes, log.valid_bytes - kLogHeaderBytes));
    ZO_TRY(write_file(path, [&](int descriptor) { return write_all(descriptor, good.data(), good.size()); }));
  }
  ZO_ASSIGN(file, LogFile::open(path, log));
  log_.emplace(std::move(file));
  return std::move(log.records);
}

Result<std::string> StateFolder::keep_damaged(const std::string& bytes) const {
  for (uint64_t number = 1;; ++number) {
    const std::string path = log_path(path_) + kDamaged + std::to_string(number);
    if (!exists(path)) {
      ZO_TRY(write_file(path, [&](int descriptor) { return write_all(descriptor, bytes.data(), bytes.size()); }));
      return path;
    }
    const auto kept = read_file(path, ZO_STATE_ERROR);
    if (kept.ok() && *kept == bytes) {
      return path;
    }
  }
}

Status StateFolder::append(const Record& record) {
  ZO_TRY(log_->append(record));
  if (made_) {
    made_->wanted = true;
    made_.reset();
  }
  return {};
}

Status StateFolder::cut(uint64_t records) {
  digest_.forget();
  remove_snapshots_after(records);
  return log_->cut(records);
}

Result<std::vector<Record>> StateFolder::read_records() const {
  const std::string path = log_path(path_);
  ZO_ASSIGN(bytes, read_file(path, ZO_STATE_ERROR));
  ZO_ASSIGN(log, parse_log(bytes, path));
  return log.damage.empty() ? Result<std::vector<Record>>(std::move(log.records)) : damaged(path, log.damage, "");
}

std::string StateFolder::snapshot_path(uint64_t steps) const {
  return join(path_, kPrefix + std::to_string(steps) + kSuffix);
}

Result<SafeTensors> StateFolder::read_snapshot(uint64_t steps) {
  const std::string path = snapshot_path(steps);
  ZO_ASSIGN(file, SafeTensors::open(path, ZO_STATE_ERROR));
  if (file.metadata("bundle_id") != bundle_id_ || file.metadata("steps") != std::to_string(steps) ||
      file.metadata("crc32") != crc_text(file.data_crc())) {
    return Failure{ZO_STATE_ERROR, path, "a damaged snapshot, or one of another run", "a snapshot of this state",
                   "Remove it; the run continues from an older one."};
  }
  if (!writable()) {
    digest_.forget();  // another process may train it
  }
  ZO_ASSIGN(digest, digest_.of(log_path(path_), log_bytes(steps, queries_)));
  if (digest != file.metadata(kLogDigest)) {
    return Failure{ZO_STATE_ERROR, path, "a snapshot after other steps than the log has", "one after its first steps",
                   "Remove it; the run continues from an older one."};
  }
  return file;
}

Status StateFolder::write_snapshot(uint64_t steps, const std::vector<TensorToWrite>& tensors,
                                   std::optional<uint64_t> kept) {
  ZO_ASSIGN(digest, digest_.of(log_path(path_), log_bytes(steps, queries_)));
  ZO_TRY(write_safetensors(
      snapshot_path(steps), tensors,
      {{"bundle_id", bundle_id_}, {"steps", std::to_string(steps)}, {kLogDigest, std::move(digest)}}));
  const std::vector<uint64_t> found = snapshots();
  for (size_t i = 2; i < found.size(); ++i) {
    if (found[i] != kept) {
      ::unlink(snapshot_path(found[i]).c_str());
    }
  }
  return {};
}

void StateFolder::remove_snapshots_after(uint64_t steps) {
  for (uint64_t found : snapshots()) {
    // One that is not of this run is not ours; it is never read.
    if (found > steps && is_of(snapshot_path(found), bundle_id_)) {
      ::unlink(snapshot_path(found).c_str());
    }
  }
}

Result<SafeTensors> StateFolder::read_initial() const {
  ZO_ASSIGN(file, SafeTensors::open(initial_path(), ZO_STATE_ERROR));
  if (file.metadata("crc32") != crc_text(file.data_crc())) {
    return Failure{ZO_STATE_ERROR, initial_path(), "damaged values", "the values of an imported adapter",
                   "Restore the state from a copy, or import the adapter again into another state."};
  }
  return file;
}

Status StateFolder::write_initial(const std::vector<TensorToWrite>& tensors) {
  ZO_TRY(write_safetensors(initial_path(), tensors, {{"bundle_id", bundle_id_}}));
  if (made_) {
    made_->wanted = true;
    made_.reset();
  }
  return {};
}

Status StateFolder::write_run(const RunRecord& run) {
  const std::string text = encode_run(run).dump(1, ' ', true) + "\n";
  return write_file(run_path(), [&](int descriptor) { return write_all(descriptor, text.data(), text.size()); });
}

Status StateFolder::write_evaluations(const Evaluations& evaluations) {
  const std::string text = encode_evaluations(evaluations).dump(1, ' ', true) + "\n";
  return write_file(evaluations_path(path_),
                    [&](int descriptor) { return write_all(descriptor, text.data(), text.size()); });
}

Status StateFolder::write_reference(const std::vector<ReferenceScores>& scores) {
  const std::string text = encode_reference(bundle_id_, scores).dump() + "\n";
  ZO_TRY(write_file(reference_path(), [&](int descriptor) { return write_all(descriptor, text.data(), text.size()); }));
  if (made_) {
    made_->wanted = true;
    made_.reset();
  }
  return {};
}

void StateFolder::remove_leftovers() const {
  for (const std::string& name : list(path_)) {
    if (is_leftover(name)) {
      ::unlink(join(path_, name).c_str());
    }
  }
}

}  // namespace zoexport
