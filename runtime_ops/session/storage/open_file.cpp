#include "session/storage/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>

#include "session/storage/files.h"
#include "session/storage/sha256.h"

namespace zoexport {
namespace {

// Not waiting for whoever writes, should the path be a pipe.
constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

bool is_link(int folder, const std::string& name) {
  struct stat status;
  return ::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
}

}  // namespace

Result<OpenFile> OpenFile::of(int descriptor, const std::string& path, zo_status code) {
  OpenFile file(descriptor, path, code);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) {
    return system_failure(code, path, errno, false);
  }
  if (!S_ISREG(status.st_mode)) {
    return Failure{code, path, "something that is not a file", "a file", "Check the path."};
  }
  file.size_ = static_cast<uint64_t>(status.st_size);
  return file;
}

Result<OpenFile> OpenFile::open(const std::string& path, zo_status code) {
  const int descriptor = ::open(path.c_str(), kFlags);
  if (descriptor < 0) {
    return system_failure(code, path, errno, false);
  }
  return of(descriptor, path, code);
}

ssize_t OpenFile::read_at(void* into, size_t size, uint64_t offset) const {
  size_t filled = 0;
  while (filled < size) {
    const ssize_t got =
        ::pread(descriptor_, static_cast<uint8_t*>(into) + filled, size - filled, static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return got;
    }
    if (got == 0) {
      break;
    }
    filled += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(filled);
}

Result<std::string> OpenFile::read() const {
  std::string content(size_, '\0');
  const ssize_t got = read_at(content.data(), content.size(), 0);
  if (got < 0) {
    return system_failure(code_, path_, errno, false);
  }
  content.resize(static_cast<size_t>(got));
  return content;
}

Result<std::string> OpenFile::hash() const {
  constexpr size_t kPiece = size_t{256} * 1024;
  const auto piece = std::make_unique<uint8_t[]>(kPiece);
  Sha256 hash;
  for (uint64_t offset = 0;; offset += kPiece) {
    const ssize_t got = read_at(piece.get(), kPiece, offset);
    if (got < 0) {
      return system_failure(code_, path_, errno, false);
    }
    hash.update(piece.get(), static_cast<size_t>(got));
    if (static_cast<size_t>(got) < kPiece) {
      return to_hex(hash.finish());
    }
  }
}

Result<Folder> Folder::open(const std::string& path, zo_status code) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY);
  if (descriptor < 0) {
    return system_failure(code, path, errno, false);
  }
  return Folder(descriptor, path, code);
}

bool Folder::has(const std::string& name) const {
  struct stat status;
  return ::fstatat(descriptor_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<OpenFile> Folder::file(const std::string& name) const {
  const std::string path = join(path_, name);
  const auto refused = [&](const std::string& found) {
    return Failure{code_, path, found, "a file within the folder", "Copy the folder again from where it was made."};
  };
  Folder passed(-1, "", code_);  // the folder that was reached; its own descriptor is closed with it
  int at = descriptor_;
  for (size_t begin = 0;;) {
    const size_t slash = name.find('/', begin);
    const std::string part = name.substr(begin, slash == std::string::npos ? slash : slash - begin);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string::npos) {
      return refused("a name that leads elsewhere");
    }
    const bool last = slash == std::string::npos;
    const int next = ::openat(at, part.c_str(), (last ? kFlags : O_RDONLY | O_CLOEXEC | O_DIRECTORY) | O_NOFOLLOW);
    if (next < 0) {
      const int error = errno;
      return is_link(at, part) ? refused("a link") : system_failure(code_, path, error, false);
    }
    if (last) {
      return OpenFile::of(next, path, code_);
    }
    Folder entered(next, "", code_);
    std::swap(passed.descriptor_, entered.descriptor_);
    at = passed.descriptor_;
    begin = slash + 1;
  }
}

}  // namespace zoexport
