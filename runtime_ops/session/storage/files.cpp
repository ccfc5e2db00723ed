#include "session/storage/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "session/storage/open_file.h"

namespace zoexport {
namespace {

// Closes a descriptor at the end of a scope.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) {
      ::close(value);
    }
  }
};

// fsync, through the drive's own cache.
int sync_all(int descriptor) {
#if defined(__APPLE__)
  // fsync leaves it there; file systems that cannot do more say so.
  if (::fcntl(descriptor, F_FULLFSYNC) == 0) {
    return 0;
  }
  if (errno != ENOTSUP && errno != EINVAL && errno != ENOTTY) {
    return -1;
  }
#endif
  return uninterrupted([&] { return ::fsync(descriptor); });
}

}  // namespace

std::string join(const std::string& folder, const std::string& name) {
  return folder.empty() || folder.back() == '/' ? folder + name : folder + "/" + name;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : (slash == 0 ? "/" : path.substr(0, slash));
}

bool exists(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0;
}

Failure system_failure(zo_status code, const std::string& path, int error, bool writing) {
  const std::string reason = std::strerror(error);
  if (!writing) {
    return {code, path, reason, "a file that can be read",
            "Check the path and its permissions; copy the folder again if it is incomplete."};
  }
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return {code, path, reason, full ? "room for the file" : "a place that can be written",
          full ? "Free space there and run again; the last good state is kept."
               : "Check its permissions and run again; the last good state is kept."};
}

Result<uint64_t> file_size(const std::string& path, zo_status code) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) {
    return system_failure(code, path, errno, false);
  }
  if (!S_ISREG(status.st_mode)) {
    return Failure{code, path, "something that is not a file", "a file", "Check the path."};
  }
  return static_cast<uint64_t>(status.st_size);
}

Result<std::string> read_file(const std::string& path, zo_status code) {
  ZO_ASSIGN(file, OpenFile::open(path, code));
  return file.read();
}

Status read_range(const std::string& path, uint64_t first, uint64_t bytes, zo_status code,
                  const std::function<void(const uint8_t* data, size_t size)>& take) {
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.value < 0) {
    return system_failure(code, path, errno, false);
  }
  constexpr size_t kPiece = size_t{64} * 1024;
  const auto piece = std::make_unique<uint8_t[]>(kPiece);
  while (bytes > 0) {
    const ssize_t got = ::pread(file.value, piece.get(), std::min<uint64_t>(kPiece, bytes), static_cast<off_t>(first));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return system_failure(code, path, errno, false);
    }
    if (got == 0) {
      return Failure{code, path, "the end of the file at byte " + std::to_string(first),
                     std::to_string(bytes) + " bytes more", "Let one process write it at a time."};
    }
    take(piece.get(), static_cast<size_t>(got));
    first += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return {};
}

Result<std::string> hash_file(const std::string& path, zo_status code) {
  ZO_ASSIGN(file, OpenFile::open(path, code));
  return file.hash();
}

std::string temporary_name(const std::string& name) { return name + ".tmp"; }

int sync_data(int descriptor) {
#if defined(__APPLE__)
  return sync_all(descriptor);
#else
  return uninterrupted([&] { return ::fdatasync(descriptor); });
#endif
}

Status sync_folder(const std::string& folder) {
  Descriptor descriptor{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (descriptor.value < 0) {
    return system_failure(ZO_STATE_ERROR, folder, errno, true);
  }
  // File systems that have no sync of folders say so: there is nothing to wait for.
  if (sync_all(descriptor.value) != 0 && errno != EINVAL && errno != ENOTSUP) {
    return system_failure(ZO_STATE_ERROR, folder, errno, true);
  }
  return {};
}

bool write_all(int descriptor, const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  while (size > 0) {
    const ssize_t written = ::write(descriptor, bytes, size);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      if (written == 0) {
        errno = ENOSPC;
      }
      return false;
    }
    bytes += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

Status write_file(const std::string& path, const std::function<bool(int)>& write) {
  const std::string temporary = temporary_name(path);
  int error = 0;
  {
    Descriptor file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.value < 0) {
      return system_failure(ZO_STATE_ERROR, path, errno, true);
    }
    if (!write(file.value) || sync_all(file.value) != 0) {
      error = errno;
    }
  }
  const Status renamed = error == 0 ? rename_file(temporary, path) : system_failure(ZO_STATE_ERROR, path, error, true);
  if (!renamed.ok()) {
    ::unlink(temporary.c_str());  // there unless the folder alone could not be synced
  }
  return renamed;
}

Status sync_file(const std::string& path) {
  Descriptor file{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
  if (file.value < 0 || sync_all(file.value) != 0) {
    return system_failure(ZO_STATE_ERROR, path, errno, true);
  }
  return {};
}

Status rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return system_failure(ZO_STATE_ERROR, to, errno, true);
  }
  return sync_folder(folder_of(to));
}

Status make_folder(const std::string& path, std::vector<std::string>* made) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0755) == 0) {
      if (made != nullptr) {
        made->push_back(part);
      }
      ZO_TRY(sync_folder(folder_of(part)));
    } else if (errno != EEXIST) {
      return system_failure(ZO_STATE_ERROR, path, errno, true);
    }
    if (slash == std::string::npos) {
      break;
    }
  }
  struct stat status;
  if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return Failure{ZO_STATE_ERROR, path, "something that is not a folder", "a folder", "Choose another path."};
  }
  return {};
}

Result<MappedFile> MappedFile::of(const OpenFile& file, Writes writes) {
  return of(file, 0, static_cast<size_t>(file.size()), writes);
}

Result<MappedFile> MappedFile::of(const OpenFile& file, uint64_t offset, size_t size, Writes writes) {
  if (size == 0) {
    return MappedFile(nullptr, 0, 0, MappingGuard());
  }
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto before = static_cast<size_t>(offset % page);
  const auto map = [&](int protection, int flags) {
    return ::mmap(nullptr, before + size, protection, flags, file.descriptor(), static_cast<off_t>(offset - before));
  };
  void* data = MAP_FAILED;
  if (writes == Writes::kPrivateCopy) {
    data = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
  }
  if (data == MAP_FAILED) {  // a system may count all that could be written as memory, and have less
    data = map(PROT_READ, MAP_PRIVATE);
  }
  if (data == MAP_FAILED) {
    return system_failure(file.code(), file.path(), errno, false);
  }
  return MappedFile(static_cast<const uint8_t*>(data) + before, size, before,
                    MappingGuard(data, before + size, file.path(), file.code()));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      before_(other.before_),
      guard_(std::move(other.guard_)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    guard_ = MappingGuard();
    ::munmap(const_cast<uint8_t*>(data_) - before_, before_ + size_);
  }
}

Result<std::optional<FileLock>> FileLock::acquire(const std::string& path, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0) {
      return system_failure(ZO_STATE_ERROR, path, errno, true);
    }
    FileLock lock(descriptor, path);
    while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if (error != EWOULDBLOCK && error != EINTR) {
        return system_failure(ZO_STATE_ERROR, path, error, true);
      }
      if (Clock::now() >= end) {
        return std::optional<FileLock>();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    // Whoever held it may have removed the file: then others lock another one of this name.
    struct stat ours, named;
    if (::fstat(descriptor, &ours) == 0 && ::stat(path.c_str(), &named) == 0 && ours.st_dev == named.st_dev &&
        ours.st_ino == named.st_ino) {
      return std::optional<FileLock>(std::move(lock));
    }
  }
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(other.descriptor_), path_(std::move(other.path_)) {
  other.descriptor_ = -1;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) {
    // Explicitly, since a forked child may hold a copy of the descriptor.
    ::flock(descriptor_, LOCK_UN);
    ::close(descriptor_);
  }
}

std::string FileLock::read() const {
  std::string content(1024, '\0');
  const ssize_t got = ::pread(descriptor_, content.data(), content.size(), 0);
  content.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return content;
}

Status FileLock::write(const std::string& content) {
  const auto size = static_cast<ssize_t>(content.size());
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, content.data(), content.size(), 0) != size) {
    const int error = errno;
    (void)::ftruncate(descriptor_, 0);
    return system_failure(ZO_STATE_ERROR, path_, error, true);
  }
  return {};
}

void FileLock::touch() const { (void)::futimens(descriptor_, nullptr); }

Result<FolderLock> FolderLock::acquire(const std::string& path) {
  ZO_ASSIGN(lock, FileLock::acquire(path, 0));
  if (!lock) {
    const auto holder = read_file(path, ZO_STATE_ERROR);
    const std::string number = holder.ok() ? holder->substr(0, holder->find('\n')) : "";
    return Failure{ZO_STATE_ERROR, path,
                   "a lock that another training run holds" + (number.empty() ? "" : " (process " + number + ")"),
                   "one process that trains a state at a time", "Wait for it to end or stop it, or use another state."};
  }
  // The number only serves a message; a lock without it is as good.
  (void)lock->write(std::to_string(::getpid()) + "\n");
  return FolderLock(std::move(*lock));
}

std::string default_cache_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const char* folder = std::getenv("ZOEXPORT_SHADERS")) {
    return folder;
  }
  const std::string home = variable("HOME");
  std::string chosen = variable("ZOEXPORT_CACHE");
  if (!chosen.empty()) {
    if (chosen == "~" || chosen.compare(0, 2, "~/") == 0) {
      chosen.replace(0, 1, home);
    }
    return join(chosen, "shaders");
  }
  chosen = variable("XDG_CACHE_HOME");
  if (chosen.empty() && !home.empty()) {
    chosen = join(home, ".cache");
  }
  return chosen.empty() ? "" : join(chosen, "zoexport/shaders");
}

}  // namespace zoexport
