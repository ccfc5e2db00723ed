#include "engines/packed_weights.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <set>
#include <vector>

#include "session/storage/sha256.h"

namespace zoexport {
namespace {

const char* const kPacked = ".packed";
const char* const kLock = ".lock";
const char* const kTemporary = ".tmp";
constexpr double kWaitSeconds = 10;
constexpr time_t kUnusedSeconds = time_t{30} * 24 * 3600;

#if defined(__APPLE__)
timespec modified(const struct stat& status) { return status.st_mtimespec; }
timespec changed(const struct stat& status) { return status.st_ctimespec; }
#else
timespec modified(const struct stat& status) { return status.st_mtim; }
timespec changed(const struct stat& status) { return status.st_ctim; }
#endif

std::string text(const timespec& time) { return std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec); }

// What tells, without reading it, that nobody wrote to a file: every write sets the times, and ctime cannot be set back.
std::string fingerprint(const struct stat& status) {
  return std::to_string(status.st_size) + " " + std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino) +
         " " + text(modified(status)) + " " + text(changed(status));
}

Result<struct stat> status_of(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) {
    return system_failure(ZO_STATE_ERROR, path, errno, false);
  }
  return status;
}

// The record of a file lies in its lock file: the content's hash, then the fingerprint that the content had.
std::string record_of(const std::string& hash, const struct stat& status) {
  return "zoexport-packed-1 " + hash + " " + fingerprint(status) + "\n";
}

// Whether the file is what the record says. One that only looks different, being copied or restored, is read.
bool is_whole(const std::string& path, FileLock& lock) {
  const std::string record = lock.read();
  const auto status = status_of(path);
  constexpr size_t kHashAt = 18, kHashSize = 64;  // behind "zoexport-packed-1 "
  if (!status.ok() || record.size() < kHashAt + kHashSize) {
    return false;
  }
  const std::string hash = record.substr(kHashAt, kHashSize);
  if (record == record_of(hash, *status)) {
    return true;
  }
  const auto found = hash_file(path, ZO_STATE_ERROR);
  return found.ok() && *found == hash && record.compare(0, kHashAt, record_of(hash, *status), 0, kHashAt) == 0 &&
         lock.write(record_of(hash, *status)).ok();
}

Failure no_room(const std::string& folder, uint64_t room) {
  return {ZO_STATE_ERROR, folder, "too little free space", std::to_string(room >> 20) + " MB for packed weights",
          "Free space there, or name another folder."};
}

// A mapped file that the system cannot back ends the process, so the space is taken once for trial.
Status check_room(const std::string& folder, const std::string& trial, uint64_t room) {
  struct statvfs system;
  if (::statvfs(folder.c_str(), &system) == 0 && uint64_t{system.f_bavail} * system.f_frsize < room) {
    return no_room(folder, room);
  }
  struct rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < room) {
    return no_room(folder, room);
  }
#if defined(__linux__)
  // A quota shows only here.
  const int file = ::open(trial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const int error = file < 0 || ::fallocate(file, 0, 0, static_cast<off_t>(room)) != 0 ? errno : 0;
  if (file >= 0) {
    ::close(file);
    ::unlink(trial.c_str());
  }
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return no_room(folder, room);
  }
  if (file < 0) {
    return system_failure(ZO_STATE_ERROR, trial, error, true);
  }
#else
  (void)trial;
#endif
  return {};
}

// Removes what no session has used for a month. A file in use is locked, or mapped, which removing does not disturb.
void prune(const std::string& folder) {
  std::vector<std::string> keys;
  if (DIR* entries = ::opendir(folder.c_str())) {
    const size_t length = std::strlen(kLock);
    while (const dirent* entry = ::readdir(entries)) {
      const std::string name = entry->d_name;
      if (name.size() > length && name.compare(name.size() - length, length, kLock) == 0) {
        keys.push_back(name.substr(0, name.size() - length));
      }
    }
    ::closedir(entries);
  }
  for (const std::string& key : keys) {
    const std::string base = join(folder, key);
    const auto used = status_of(base + kLock);
    if (!used.ok() || modified(*used).tv_sec > ::time(nullptr) - kUnusedSeconds) {
      continue;
    }
    const auto lock = FileLock::acquire(base + kLock, 0);
    if (lock.ok() && *lock) {
      ::unlink((base + kPacked).c_str());
      ::unlink((base + kTemporary).c_str());
      ::unlink((base + kLock).c_str());
    }
  }
}

Status make_file(const std::string& folder, const std::string& base, uint64_t room,
                 const std::function<Status(const std::string&)>& make, FileLock& lock) {
  const std::string path = base + kPacked;
  const std::string temporary = base + kTemporary;
  // Until there is a new one, no record describes the file.
  ZO_TRY(lock.write(""));
  ::unlink(path.c_str());
  ::unlink(temporary.c_str());
  prune(folder);
  ZO_TRY(check_room(folder, temporary, room));
  const Status made = make(temporary);
  std::string hash;
  Status kept = [&]() -> Status {
    ZO_TRY(made);
    ZO_TRY(sync_file(temporary));
    ZO_ASSIGN(found, hash_file(temporary, ZO_STATE_ERROR));
    hash = std::move(found);
    return rename_file(temporary, path);
  }();
  if (!kept.ok()) {
    ::unlink(temporary.c_str());
    return kept;
  }
  ZO_ASSIGN(status, status_of(path));
  return lock.write(record_of(hash, status));
}

}  // namespace

std::string default_packed_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const char* folder = std::getenv("ZOEXPORT_PACKED")) {
    return folder;
  }
  const std::string home = variable("HOME");
  std::string chosen = variable("ZOEXPORT_CACHE");
  if (!chosen.empty()) {
    if (chosen == "~" || chosen.compare(0, 2, "~/") == 0) {
      chosen.replace(0, 1, home);
    }
    return join(chosen, "packed");
  }
  chosen = variable("XDG_CACHE_HOME");
  if (chosen.empty() && !home.empty()) {
    chosen = join(home, ".cache");
  }
  return chosen.empty() ? "" : join(chosen, "zoexport/packed");
}

std::string packer_identity(const void* inside) {
  std::string identity;
  struct utsname system;
  if (::uname(&system) == 0) {
    identity += std::string(system.sysname) + " " + system.machine + "\n";
  }
  // Kernels, and with them layouts, are chosen by features and by the kind of core. Other lines change while it runs.
  std::ifstream processors("/proc/cpuinfo");
  std::set<std::string> lines;
  for (std::string line; std::getline(processors, line);) {
    for (const char* key : {"flags", "Features", "vendor_id", "cpu family", "model", "CPU "}) {
      if (line.compare(0, std::strlen(key), key) == 0) {
        lines.insert(line);
      }
    }
  }
  for (const std::string& line : lines) {
    identity += line + "\n";
  }
  Dl_info library;
  if (::dladdr(inside, &library) != 0 && library.dli_fname != nullptr) {
    const auto status = status_of(library.dli_fname);
    if (status.ok()) {
      identity += std::to_string(status->st_size) + " " + text(modified(*status));
    }
  }
  return identity;
}

Result<PackedWeights> PackedWeights::open(const std::string& folder, const std::string& key, uint64_t room,
                                          const std::function<Status(const std::string&)>& make) {
  ZO_TRY(make_folder(folder));
  const std::string base = join(folder, key);
  ZO_ASSIGN(lock, FileLock::acquire(base + kLock, kWaitSeconds));
  if (!lock) {
    return Failure{ZO_STATE_ERROR, base + kLock, "a lock that another process holds", "one that is free",
                   "Wait until that process has packed its weights."};
  }
  const std::string path = base + kPacked;
  if (!is_whole(path, *lock)) {
    ZO_TRY(make_file(folder, base, room, make, *lock));
  }
  lock->touch();  // when it was last used
  ZO_ASSIGN(size, file_size(path, ZO_STATE_ERROR));
  return PackedWeights(std::move(*lock), path, size);
}

void PackedWeights::release_library_lock() const {
  const auto ours = status_of(path_);
  DIR* entries = ::opendir("/dev/fd");
  if (!ours.ok() || entries == nullptr) {
    return;
  }
  while (const dirent* entry = ::readdir(entries)) {
    struct stat status;
    const int descriptor = static_cast<int>(std::strtol(entry->d_name, nullptr, 10));
    if (::fstat(descriptor, &status) == 0 && status.st_dev == ours->st_dev && status.st_ino == ours->st_ino) {
      ::flock(descriptor, LOCK_UN);
    }
  }
  ::closedir(entries);
}

}  // namespace zoexport
