#include "session/storage/trajectory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "session/storage/crc32.h"
#include "session/storage/files.h"

namespace zoexport {
namespace {

constexpr char kMagic[8] = {'Z', 'O', 'L', 'O', 'G', '\0', '\0', '\1'};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    out += static_cast<char>(value >> (8 * i));
  }
}

void put(std::string& out, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  put(out, bits, 4);
}

uint64_t get(const char* bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  }
  return value;
}

float get_float(const char* bytes) {
  const auto bits = static_cast<uint32_t>(get(bytes, 4));
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

}  // namespace

std::string encode_header(const LogHeader& header) {
  std::string out(kMagic, sizeof(kMagic));
  for (size_t i = 0; i < 64; i += 2) {
    out += static_cast<char>(digit(header.bundle_id[i]) * 16 + digit(header.bundle_id[i + 1]));
  }
  put(out, header.seed, 8);
  put(out, header.queries, 4);
  put(out, 0, 8);
  put(out, crc32(out.data(), out.size()), 4);
  return out;
}

std::string encode_record(const Record& record) {
  std::string out;
  put(out, record.step, 4);
  put(out, record.lr);
  put(out, record.eps);
  put(out, record.loss);
  for (float gradient : record.gradients) {
    put(out, gradient);
  }
  put(out, crc32(out.data(), out.size()), 4);
  return out;
}

Result<LogContent> parse_log(const std::string& bytes, const std::string& path) {
  const char* data = bytes.data();
  const bool whole = bytes.size() >= kLogHeaderBytes && std::memcmp(data, kMagic, sizeof(kMagic)) == 0 &&
                     get(data + 60, 4) == crc32(data, 60);
  if (!whole) {
    return Failure{ZO_STATE_ERROR, path, "a damaged header", "a trajectory log",
                   "Restore the state from a copy, or start again in another folder."};
  }
  LogContent log;
  static const char* digits = "0123456789abcdef";
  for (size_t i = 8; i < 40; ++i) {
    log.header.bundle_id += digits[static_cast<uint8_t>(data[i]) >> 4];
    log.header.bundle_id += digits[static_cast<uint8_t>(data[i]) & 15];
  }
  log.header.seed = get(data + 40, 8);
  log.header.queries = static_cast<uint32_t>(get(data + 48, 4));
  const size_t size = record_bytes(log.header.queries);
  size_t at = kLogHeaderBytes;
  for (; bytes.size() - at >= size; at += size) {
    const char* record = data + at;
    if (get(record + size - 4, 4) != crc32(record, size - 4) || get(record, 4) != log.records.size()) {
      break;
    }
    Record read;
    read.step = static_cast<uint32_t>(get(record, 4));
    read.lr = get_float(record + 4);
    read.eps = get_float(record + 8);
    read.loss = get_float(record + 12);
    for (uint32_t i = 0; i < log.header.queries; ++i) {
      read.gradients.push_back(get_float(record + 16 + 4 * size_t{i}));
    }
    log.records.push_back(std::move(read));
  }
  log.valid_bytes = at;
  return log;
}

Result<LogFile> LogFile::open(const std::string& path, uint64_t valid_bytes, uint32_t queries) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return system_failure(ZO_STATE_ERROR, path, errno, true);
  }
  LogFile log(path, descriptor, valid_bytes, queries);
  ZO_TRY(log.resize(valid_bytes));
  return log;
}

LogFile::LogFile(std::string path, int descriptor, uint64_t size, uint32_t queries)
    : path_(std::move(path)), descriptor_(descriptor), size_(size), queries_(queries), synced_at_(seconds_now()) {}

LogFile::LogFile(LogFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(other.descriptor_),
      size_(other.size_),
      queries_(other.queries_),
      synced_at_(other.synced_at_) {
  other.descriptor_ = -1;
}

LogFile::~LogFile() {
  if (descriptor_ >= 0) {
    (void)sync_data(descriptor_);
    ::close(descriptor_);
  }
}

Status LogFile::resize(uint64_t size) {
  if (::ftruncate(descriptor_, static_cast<off_t>(size)) != 0 ||
      ::lseek(descriptor_, static_cast<off_t>(size), SEEK_SET) < 0) {
    return system_failure(ZO_STATE_ERROR, path_, errno, true);
  }
  size_ = size;
  return {};
}

Status LogFile::append(const Record& record) {
  const std::string bytes = encode_record(record);
  if (!write_all(descriptor_, bytes.data(), bytes.size())) {
    const Failure failure = system_failure(ZO_STATE_ERROR, path_, errno, true);
    // A torn record would end the log for the records after it.
    (void)resize(size_).ok();
    return failure;
  }
  const uint64_t before = size_;
  size_ += bytes.size();
  if (seconds_now() - synced_at_ < 1.0) {
    return {};
  }
  Status synced = sync();
  if (!synced.ok()) {
    (void)resize(before).ok();
  }
  return synced;
}

Status LogFile::sync() {
  if (sync_data(descriptor_) != 0) {
    return system_failure(ZO_STATE_ERROR, path_, errno, true);
  }
  synced_at_ = seconds_now();
  return {};
}

Status LogFile::cut(uint64_t records) {
  ZO_TRY(resize(kLogHeaderBytes + records * record_bytes(queries_)));
  return sync();
}

}  // namespace zoexport
