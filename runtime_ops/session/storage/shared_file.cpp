#include "session/storage/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "session/storage/files.h"

namespace zoexport {
namespace {

bool writes_zeros(int descriptor, size_t bytes) {
  const std::vector<uint8_t> zeros(std::min(bytes, size_t{256} * 1024), 0);
  if (::lseek(descriptor, 0, SEEK_SET) < 0) {
    return false;
  }
  for (size_t done = 0; done < bytes; done += zeros.size()) {
    if (!write_all(descriptor, zeros.data(), std::min(zeros.size(), bytes - done))) {
      return false;
    }
  }
  return true;
}

// Reserve room on the disk; false with errno set if the disk is full.
bool take_room(int descriptor, size_t bytes) {
#if defined(__APPLE__)
  return writes_zeros(descriptor, bytes);
#else
  int error;
  do {
    error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  // Not every file system can take room without writing.
  if (error == EOPNOTSUPP || error == EINVAL || error == ENOSYS) {
    return writes_zeros(descriptor, bytes);
  }
  errno = error;
  return error == 0;
#endif
}

size_t page_size() {
  static const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

std::string temporary_folder() {
  const char* named = std::getenv("TMPDIR");
  if (named != nullptr && *named != '\0') {
    return named;
  }
#if defined(__ANDROID__)
  return "/data/local/tmp";
#else
  return "/tmp";
#endif
}

Result<SharedFile> SharedFile::unnamed(const std::string& folder, size_t bytes) {
  std::string path = join(folder, temporary_name(kScratchPrefix + std::string(kScratchLetters, 'X')));
  const int descriptor = ::mkstemps(path.data(), static_cast<int>(temporary_name("").size()));
  if (descriptor < 0) {
    Failure failure = system_failure(ZO_STATE_ERROR, folder, errno, true);
    failure.fix += " TMPDIR names the folder for temporary files of a session without a state.";
    return failure;
  }
  ::unlink(path.c_str());
  (void)::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  SharedFile file(descriptor, folder);
  ZO_TRY(file.reserve(bytes));
  ZO_TRY(file.map(bytes, true));
  return file;
}

Result<SharedFile> SharedFile::create(const std::string& path, size_t bytes) {
  ::unlink(path.c_str());
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return system_failure(ZO_STATE_ERROR, path, errno, true);
  }
  SharedFile file(descriptor, path);
  Status made = file.reserve(bytes);
  made = made.ok() ? file.map(bytes, true) : made;
  if (!made.ok()) {
    ::unlink(path.c_str());
    return made.failure();
  }
  return file;
}

Result<SharedFile> SharedFile::open(const std::string& path, bool writable) {
  ZO_ASSIGN(bytes, file_size(path, ZO_STATE_ERROR));
  const int descriptor = ::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (descriptor < 0) {
    return system_failure(ZO_STATE_ERROR, path, errno, writable);
  }
  SharedFile file(descriptor, path);
  ZO_TRY(file.map(static_cast<size_t>(bytes), writable));
  return file;
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      device_(other.device_),
      number_(other.number_),
      guard_(std::move(other.guard_)) {}

SharedFile& SharedFile::operator=(SharedFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(number_, other.number_);
  std::swap(guard_, other.guard_);
  return *this;
}

SharedFile::~SharedFile() {
  if (data_ != nullptr) {
    guard_ = MappingGuard();
    ::munmap(data_, size_);
  }
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Status SharedFile::map(size_t bytes, bool writable) {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) {
    return system_failure(ZO_STATE_ERROR, path_, errno, writable);
  }
  device_ = static_cast<uint64_t>(status.st_dev);
  number_ = static_cast<uint64_t>(status.st_ino);
  size_ = bytes;
  if (bytes == 0) {
    return {};
  }
  void* data = ::mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) {
    return system_failure(ZO_STATE_ERROR, path_, errno, writable);
  }
  data_ = static_cast<uint8_t*>(data);
  guard_ = MappingGuard(data, bytes, path_, ZO_STATE_ERROR);
  return {};
}

Status SharedFile::reserve(size_t bytes) {
  if (bytes > 0 && !take_room(descriptor_, bytes)) {
    return system_failure(ZO_STATE_ERROR, path_, errno, true);
  }
  return {};
}

bool SharedFile::release(size_t offset, size_t bytes) {
  const size_t begin = (offset + page_size() - 1) / page_size() * page_size();
  const size_t end = (offset + bytes) / page_size() * page_size();
#if defined(FALLOC_FL_PUNCH_HOLE)
  // Drops the pages from the mapping and the cache too: what was consumed need never reach the disk.
  return begin < end && ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                                    static_cast<off_t>(end - begin)) == 0;
#else
  (void)begin;
  (void)end;
  return false;
#endif
}

}  // namespace zoexport
