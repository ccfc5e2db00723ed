#include "session/storage/work_file.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "session/storage/files.h"

namespace zoexport {
namespace {

constexpr size_t kHeaderBytes = 4096;               // so that the copies begin at a page where pages have this size
constexpr uint64_t kMagic = 0x01004B524F574F5Aull;  // "ZOWORK\0\1", little-endian

// Orders the stores of one process for whoever maps the file after it: a killed process has done all before one it did.
template <typename T>
void store(T& place, T value) {
  __atomic_store_n(&place, value, __ATOMIC_SEQ_CST);
}

size_t file_bytes(size_t bytes) { return kHeaderBytes + 2 * bytes; }

template <size_t N>
bool holds(const char (&field)[N], const std::string& text) {
  return text.size() <= N && std::string(field, text.size()) == text &&
         std::string(field + text.size(), N - text.size()).find_first_not_of('\0') == std::string::npos;
}

}  // namespace

struct WorkFile::Header {
  uint64_t magic;  // written last
  char bundle_id[64];
  char boot_id[64];
  uint64_t floats;
  uint64_t device;
  uint64_t number;
  uint64_t steps[2];
};

std::string boot_id() {
#if defined(__APPLE__)
  char text[64] = {};
  size_t size = sizeof(text) - 1;
  return ::sysctlbyname("kern.bootsessionuuid", text, &size, nullptr, 0) == 0 ? std::string(text) : std::string();
#else
  // The file's size is not known before it is read, so no read_file.
  std::string text;
  if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    char line[64] = {};
    text = std::fgets(line, sizeof(line), file) != nullptr ? line : "";
    std::fclose(file);
  }
  return text.substr(0, text.find('\n'));
#endif
}

Result<SharedFile> WorkFile::filled(Result<SharedFile> file, const std::string& bundle_id, size_t bytes) {
  if (file.ok()) {
    auto& header = *reinterpret_cast<Header*>(file->data());
    std::memcpy(header.bundle_id, bundle_id.data(), std::min(bundle_id.size(), sizeof(header.bundle_id)));
    const std::string boot = boot_id();
    std::memcpy(header.boot_id, boot.data(), std::min(boot.size(), sizeof(header.boot_id)));
    header.floats = bytes / sizeof(float);
    header.device = file->device();
    header.number = file->number();
    header.steps[0] = header.steps[1] = kNoSteps;
  }
  return file;
}

Result<WorkFile> WorkFile::create(const std::string& path, const std::string& bundle_id, size_t bytes) {
  ZO_ASSIGN(file, filled(SharedFile::create(path, file_bytes(bytes)), bundle_id, bytes));
  return WorkFile(std::move(file), bytes);
}

Result<WorkFile> WorkFile::unnamed(const std::string& folder, size_t bytes) {
  ZO_ASSIGN(file, filled(SharedFile::unnamed(folder, file_bytes(bytes)), "", bytes));
  return WorkFile(std::move(file), bytes);
}

std::optional<WorkFile> WorkFile::reopen(const std::string& path, const std::string& bundle_id, size_t bytes,
                                         bool writable) {
  Result<SharedFile> file = SharedFile::open(path, writable);
  if (!file.ok() || file->size() != file_bytes(bytes)) {
    return std::nullopt;
  }
  WorkFile work(std::move(*file), bytes);
  const Header& header = work.header();
  const std::string boot = boot_id();
  const bool trusted = header.magic == kMagic && holds(header.bundle_id, bundle_id) && !boot.empty() &&
                       holds(header.boot_id, boot) && header.floats == bytes / sizeof(float) &&
                       header.device == work.file_.device() && header.number == work.file_.number();
  return trusted ? std::optional<WorkFile>(std::move(work)) : std::nullopt;
}

uint8_t* WorkFile::copy(int copy) const { return file_.data() + kHeaderBytes + static_cast<size_t>(copy) * bytes_; }

uint64_t WorkFile::steps(int copy) const { return __atomic_load_n(&header().steps[copy], __ATOMIC_SEQ_CST); }

void WorkFile::set_steps(int copy, uint64_t steps) { store(header().steps[copy], steps); }

void WorkFile::set_valid(bool valid) { store(header().magic, valid ? kMagic : uint64_t{0}); }

}  // namespace zoexport
