// Preloaded into a program: numbers the calls by which it changes files below a folder, writes them down, and makes one
// of them fail (tests/crash/points.py drives it).
//
//   ZO_CRASH_ROOT   the folder
//   ZO_CRASH_TRACE  a file outside it: for each call a line "number|operation|path|second path|offset|size", and what a
//                   write wrote behind its line
//   ZO_CRASH_AT     the number of the call that fails, from 1
//   ZO_CRASH_FAULT  how: kill (before it), torn (half of a write, then killed), short (half of a write), EIO, ENOSPC,
//                   EINTR (this call alone), full (this call and all later ones that need room: ENOSPC)
//   ZO_CRASH_BOOT   what stands for the system's boot id
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

struct Plan {
  std::string root, fault, boot;
  int trace = -1;
  long at = 0;

  Plan() {
    root = text("ZO_CRASH_ROOT");
    fault = text("ZO_CRASH_FAULT");
    boot = text("ZO_CRASH_BOOT");
    at = std::strtol(text("ZO_CRASH_AT").c_str(), nullptr, 10);
    const std::string path = text("ZO_CRASH_TRACE");
    if (!path.empty()) {
      trace = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644));
    }
  }
  static std::string text(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  }
};

const Plan& plan() {
  static const Plan made;
  return made;
}

std::mutex guard;
long count = 0;

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// The file of a descriptor; empty where it is none. A file without a name ends in " (deleted)".
std::string path_of(int descriptor) {
  char target[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), target, sizeof(target));
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : "";
}

std::string absolute(const char* path) {
  if (path[0] == '/') {
    return path;
  }
  char here[PATH_MAX];
  return ::getcwd(here, sizeof(here)) == nullptr ? path : std::string(here) + "/" + path;
}

void put(const char* bytes, size_t size) {
  while (size > 0) {
    const long wrote = ::syscall(SYS_write, plan().trace, bytes, size);
    if (wrote <= 0) {
      std::abort();
    }
    bytes += wrote;
    size -= static_cast<size_t>(wrote);
  }
}

void kill_now() { ::syscall(SYS_kill, ::getpid(), SIGKILL); }

// What is to become of a call.
struct Call {
  bool fails = false;  // with errno set
  bool half = false;   // of a write
  bool dies = false;   // after that
};

Call enter(const char* operation, const std::string& path, const std::string& second, off_t offset, size_t size,
           const void* bytes = nullptr) {
  const Plan& p = plan();
  const bool ours = !p.root.empty() && (path.compare(0, p.root.size(), p.root) == 0);
  if (!ours) {
    return {};
  }
  const std::lock_guard<std::mutex> lock(guard);
  const long number = ++count;
  const bool hit = number == p.at;
  if (hit && p.fault == "kill") {
    kill_now();
  }
  const bool writes = bytes != nullptr;
  Call call;
  if (hit && writes && (p.fault == "short" || p.fault == "torn") && size > 1) {
    call.half = true;
    call.dies = p.fault == "torn";
  }
  const std::string name = operation;
  const bool room = writes || name == "create" || name == "fallocate" || name == "mkdir" || name == "rename";
  if (hit || (p.fault == "full" && p.at > 0 && number > p.at)) {
    const int error = p.fault == "EIO"                                     ? EIO
                      : p.fault == "EINTR"                                 ? EINTR
                      : (p.fault == "ENOSPC" || p.fault == "full") && room ? ENOSPC
                                                                           : 0;
    call.fails = error != 0;
    errno = error != 0 ? error : errno;
  }
  if (p.trace >= 0 && !call.fails) {
    const size_t done = call.half ? size / 2 : size;
    const std::string line = std::to_string(number) + "|" + name + "|" + path + "|" + second + "|" +
                             std::to_string(offset) + "|" + std::to_string(done) + "\n";
    const int kept = errno;
    put(line.data(), line.size());
    if (writes) {
      put(static_cast<const char*>(bytes), done);
    }
    errno = kept;
  }
  return call;
}

int open_file(const char* name, int at, const char* path, int flags, mode_t mode) {
  const std::string full = absolute(path);
  if (!plan().boot.empty() && full == "/proc/sys/kernel/random/boot_id") {
    return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, plan().boot.c_str(), flags, mode));
  }
  (void)name;
  struct stat status;
  const bool there = ::stat(path, &status) == 0;
  if ((flags & O_CREAT) != 0 && !there) {
    if (enter("create", full, "", 0, 0).fails) {
      return -1;
    }
  } else if ((flags & O_TRUNC) != 0 && there) {
    if (enter("truncate", full, "", 0, 0).fails) {
      return -1;
    }
  }
  return static_cast<int>(::syscall(SYS_openat, at, path, flags, mode));
}

ssize_t write_at(int descriptor, const void* bytes, size_t size, off_t offset, bool positioned) {
  const off_t at = positioned ? offset : ::lseek(descriptor, 0, SEEK_CUR);
  const Call call = enter("write", path_of(descriptor), "", at, size, bytes);
  if (call.fails) {
    return -1;
  }
  const size_t wanted = call.half ? size / 2 : size;
  const long wrote = positioned ? ::syscall(SYS_pwrite64, descriptor, bytes, wanted, offset)
                                : ::syscall(SYS_write, descriptor, bytes, wanted);
  if (call.dies) {
    kill_now();
  }
  return wrote;
}

int resize(int descriptor, off_t size) {
  if (enter("truncate", path_of(descriptor), "", 0, static_cast<size_t>(size)).fails) {
    return -1;
  }
  return static_cast<int>(::syscall(SYS_ftruncate, descriptor, size));
}

int take_room(int descriptor, off_t offset, off_t size) {
  const int kept = errno;
  if (enter("fallocate", path_of(descriptor), "", offset, static_cast<size_t>(size)).fails) {
    const int error = errno;
    errno = kept;
    return error;
  }
  return ::syscall(SYS_fallocate, descriptor, 0, offset, size) == 0 ? 0 : errno;
}

mode_t mode_of(int flags, va_list rest) { return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(rest, int)) : 0; }

}  // namespace

#define ZO_OPEN(NAME)                                     \
  extern "C" int NAME(const char* path, int flags, ...) { \
    va_list rest;                                         \
    va_start(rest, flags);                                \
    const mode_t mode = mode_of(flags, rest);             \
    va_end(rest);                                         \
    return open_file(#NAME, AT_FDCWD, path, flags, mode); \
  }
ZO_OPEN(open)
ZO_OPEN(open64)
#undef ZO_OPEN

extern "C" {

ssize_t write(int descriptor, const void* bytes, size_t size) { return write_at(descriptor, bytes, size, 0, false); }
ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  return write_at(descriptor, bytes, size, offset, true);
}
ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t offset) {
  return write_at(descriptor, bytes, size, offset, true);
}
int ftruncate(int descriptor, off_t size) noexcept { return resize(descriptor, size); }
int ftruncate64(int descriptor, off64_t size) noexcept { return resize(descriptor, size); }
int posix_fallocate(int descriptor, off_t offset, off_t size) { return take_room(descriptor, offset, size); }
int posix_fallocate64(int descriptor, off64_t offset, off64_t size) { return take_room(descriptor, offset, size); }

int fsync(int descriptor) {
  if (enter("sync", path_of(descriptor), "", 0, 0).fails) {
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
int fdatasync(int descriptor) {
  if (enter("sync", path_of(descriptor), "", 0, 0).fails) {
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fdatasync, descriptor));
}
int rename(const char* from, const char* to) noexcept {
  if (enter("rename", absolute(from), absolute(to), 0, 0).fails) {
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int unlink(const char* path) noexcept {
  if (enter("unlink", absolute(path), "", 0, 0).fails) {
    return -1;
  }
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int mkdir(const char* path, mode_t mode) noexcept {
  struct stat status;
  if (::stat(path, &status) != 0 && enter("mkdir", absolute(path), "", 0, 0).fails) {
    return -1;
  }
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int mkstemps(char* pattern, int suffix) {
  if (enter("create", absolute(pattern), "", 0, 0).fails) {
    return -1;
  }
  return next<int (*)(char*, int)>("mkstemps")(pattern, suffix);
}

}  // extern "C"
