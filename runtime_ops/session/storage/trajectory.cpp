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

constexpr char kMagic[8] = {'Z', 'O', 'L', 'O', 'G', '\0', '\0', '\2'};
constexpr size_t kCrcBytes = 4;
// No system stores less of a file at once, and larger pages are multiples.
constexpr uint64_t kPageBytes = 4096;

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

std::string encode_record(const Record& record, uint32_t before) {
  std::string out;
  put(out, record.step, 4);
  put(out, record.learning_rate);
  put(out, record.eps);
  put(out, record.loss);
  for (float gradient : record.gradients) {
    put(out, gradient);
  }
  put(out, crc32(out.data(), out.size(), before), kCrcBytes);
  return out;
}

namespace {

std::optional<LogHeader> read_header(const std::string& bytes) {
  const char* data = bytes.data();
  if (bytes.size() < kLogHeaderBytes || std::memcmp(data, kMagic, sizeof(kMagic)) != 0 ||
      get(data + 60, kCrcBytes) != crc32(data, 60)) {
    return std::nullopt;
  }
  LogHeader header;
  static const char* digits = "0123456789abcdef";
  for (size_t i = 8; i < 40; ++i) {
    header.bundle_id += digits[static_cast<uint8_t>(data[i]) >> 4];
    header.bundle_id += digits[static_cast<uint8_t>(data[i]) & 15];
  }
  header.seed = get(data + 40, 8);
  header.queries = static_cast<uint32_t>(get(data + 48, 4));
  return header;
}

// Return whether a whole record begins at byte `at`; at least four bytes must precede it.
bool whole_record(const std::string& bytes, size_t at, const LogHeader& header, uint32_t before) {
  const size_t size = record_bytes(header.queries);
  const char* record = bytes.data() + at;
  return bytes.size() - at >= size &&
         get(record + size - kCrcBytes, kCrcBytes) == crc32(record, size - kCrcBytes, before);
}

uint32_t crc_before(const std::string& bytes, size_t at) {
  return static_cast<uint32_t>(get(bytes.data() + at - kCrcBytes, kCrcBytes));
}

// Return the number of whole records at or after byte `at`, the place of step `step`: at any byte, since the lost part
// may have had any length.
size_t records_behind(const std::string& bytes, size_t at, uint64_t step, const LogHeader& header) {
  const size_t size = record_bytes(header.queries);
  size_t found = 0;
  while (at < bytes.size() && bytes.size() - at >= size) {
    // A step that fits is looked for first: few bytes are one, and each would cost a CRC.
    const uint64_t number = get(bytes.data() + at, 4);
    const bool there =
        number >= step && number - step <= bytes.size() && whole_record(bytes, at, header, crc_before(bytes, at));
    found += there ? 1 : 0;
    at += there ? size : 1;
  }
  return found;
}

LogContent read_records(const std::string& bytes, const LogHeader& header, uint32_t before) {
  LogContent log;
  log.header = header;
  const size_t size = record_bytes(header.queries);
  size_t at = kLogHeaderBytes;
  for (; at <= bytes.size() && whole_record(bytes, at, header, before); at += size) {
    const char* record = bytes.data() + at;
    if (get(record, 4) != log.records.size()) {
      break;
    }
    Record read;
    read.step = static_cast<uint32_t>(get(record, 4));
    read.learning_rate = get_float(record + 4);
    read.eps = get_float(record + 8);
    read.loss = get_float(record + 12);
    for (uint32_t i = 0; i < header.queries; ++i) {
      read.gradients.push_back(get_float(record + 16 + 4 * size_t{i}));
    }
    log.records.push_back(std::move(read));
    before = crc_before(bytes, at + size);
  }
  log.valid_bytes = at;
  return log;
}

}  // namespace

Result<LogContent> parse_log(const std::string& bytes, const std::string& path, const std::optional<LogHeader>& known) {
  if (const auto header = read_header(bytes)) {
    LogContent log = read_records(bytes, *header, crc_before(bytes, kLogHeaderBytes));
    size_t behind = records_behind(bytes, log.valid_bytes, log.records.size(), *header);
    // Maybe only the bad record's CRC is damaged: then the next record continues the computed CRC, not the file's.
    const size_t size = record_bytes(header->queries);
    if (behind == 0 && bytes.size() - log.valid_bytes >= 2 * size) {
      const uint32_t computed =
          crc32(bytes.data() + log.valid_bytes, size - kCrcBytes, crc_before(bytes, log.valid_bytes));
      behind = whole_record(bytes, log.valid_bytes + size, *header, computed) ? 1 : 0;
    }
    if (behind > 0) {
      log.damage = "damage after " + std::to_string(log.records.size()) + " good records, and " +
                   std::to_string(behind) + " whole ones behind it";
    }
    return log;
  }
  if (!known) {
    return Failure{ZO_STATE_ERROR, path, "a damaged header", "a trajectory log",
                   "Restore the state from a copy, or start again in another folder."};
  }
  LogContent log = read_records(bytes, *known, crc_before(encode_header(*known), kLogHeaderBytes));
  log.damage = "a damaged header before " + std::to_string(log.records.size()) + " good records";
  return log;
}

Result<std::string> LogDigest::of(const std::string& path, uint64_t bytes) {
  if (bytes < bytes_) {
    forget();
  }
  ZO_TRY(read_range(path, bytes_, bytes - bytes_, ZO_STATE_ERROR,
                    [&](const uint8_t* data, size_t size) { hash_.update(data, size); }));
  bytes_ = bytes;
  Sha256 whole = hash_;
  return to_hex(whole.finish());
}

Result<LogFile> LogFile::open(const std::string& path, const LogContent& content) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) {
    return system_failure(ZO_STATE_ERROR, path, errno, true);
  }
  LogFile log(path, descriptor, content.header);
  ZO_TRY(log.resize(content.valid_bytes));
  ZO_TRY(log.sync());
  return log;
}

LogFile::LogFile(std::string path, int descriptor, const LogHeader& header)
    : path_(std::move(path)), descriptor_(descriptor), header_(header), synced_at_(seconds_now()) {}

LogFile::LogFile(LogFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(other.descriptor_),
      header_(std::move(other.header_)),
      size_(other.size_),
      synced_(other.synced_),
      before_(other.before_),
      synced_at_(other.synced_at_),
      failed_(std::move(other.failed_)) {
  other.descriptor_ = -1;
}

LogFile::~LogFile() {
  if (descriptor_ >= 0) {
    (void)sync_data(descriptor_);
    ::close(descriptor_);
  }
}

Status LogFile::resize(uint64_t size) {
  char crc[kCrcBytes] = {};
  if (uninterrupted([&] { return ::ftruncate(descriptor_, static_cast<off_t>(size)); }) != 0 ||
      ::lseek(descriptor_, static_cast<off_t>(size), SEEK_SET) < 0 ||
      ::pread(descriptor_, crc, kCrcBytes, static_cast<off_t>(size - kCrcBytes)) != ssize_t{kCrcBytes}) {
    return system_failure(ZO_STATE_ERROR, path_, errno, true);
  }
  size_ = size;
  before_ = static_cast<uint32_t>(get(crc, kCrcBytes));
  return {};
}

Status LogFile::append(const Record& record) {
  if (failed_) {
    return *failed_;
  }
  const std::string bytes = encode_record(record, before_);
  if (!write_all(descriptor_, bytes.data(), bytes.size())) {
    const Failure failure = system_failure(ZO_STATE_ERROR, path_, errno, true);
    // A torn record would end the log for the records after it.
    (void)resize(size_).ok();
    return failure;
  }
  const uint64_t size = size_;
  size_ += bytes.size();
  before_ = crc_before(bytes, bytes.size());
  if (seconds_now() - synced_at_ < 1.0 && size_ / kPageBytes == synced_ / kPageBytes) {
    return {};
  }
  Status synced = sync();
  if (!synced.ok()) {
    (void)resize(size).ok();
  }
  return synced;
}

Status LogFile::sync() {
  if (!failed_ && sync_data(descriptor_) != 0) {
    failed_ = system_failure(ZO_STATE_ERROR, path_, errno, true);
    failed_->found += ", when the log was to be synced: steps of this session may be lost";
    failed_->fix = "Look after the disk, then open the state again: what is on it is read anew.";
  }
  if (failed_) {
    return *failed_;
  }
  synced_at_ = seconds_now();
  synced_ = size_;
  return {};
}

Status LogFile::cut(uint64_t records) {
  if (failed_) {
    return *failed_;
  }
  ZO_TRY(resize(log_bytes(records, header_.queries)));
  return sync();
}

}  // namespace zoexport
