// The trajectory log: one small record a step, from which a zeroth-order run can be recomputed (docs/formats.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "session/result.h"
#include "session/storage/sha256.h"

namespace zoexport {

struct Record {
  uint32_t step = 0;
  float learning_rate = 0;
  float eps = 0;
  float loss = 0;
  std::vector<float> gradients;
};

struct LogHeader {
  std::string bundle_id;  // 64 hexadecimal digits
  uint64_t seed = 0;
  uint32_t queries = 0;
};

inline constexpr size_t kLogHeaderBytes = 64;
inline size_t record_bytes(uint32_t queries) { return 20 + 4 * size_t{queries}; }
// Return the bytes of a log with so many records.
inline uint64_t log_bytes(uint64_t records, uint32_t queries) {
  return kLogHeaderBytes + records * record_bytes(queries);
}

std::string encode_header(const LogHeader& header);
// `before` is the CRC of the header or the record before it, which the record's continues.
std::string encode_record(const Record& record, uint32_t before = 0);

struct LogContent {
  LogHeader header;
  std::vector<Record> records;  // up to the first that is torn, damaged or out of order
  uint64_t valid_bytes = 0;     // where they end
  // Damage of the header, or of a record that whole records follow: not the result of a crash, so the rest must not be
  // discarded unasked. Empty if the log is undamaged.
  std::string damage;
};

// Reads a log. One with a damaged header is read as far as `known` tells, which is the header that it ought to have; without
// it, that is a failure.
Result<LogContent> parse_log(const std::string& bytes, const std::string& path,
                             const std::optional<LogHeader>& known = std::nullopt);

// The SHA-256 of the first bytes of a log, which only grows; it is read once.
class LogDigest {
 public:
  // In hexadecimal digits, of the first `bytes` of the file at `path`.
  Result<std::string> of(const std::string& path, uint64_t bytes);
  // Forget the digest, as the bytes that were read may have changed.
  void forget() { *this = LogDigest(); }

 private:
  Sha256 hash_;
  uint64_t bytes_ = 0;
};

// The open log of a run. Every failure leaves the file as it was before the call, but a sync that failed: what the system could
// not write it may call written afterwards, so nothing is written to the log any more.
class LogFile {
 public:
  // Opens an existing log for appending, cuts it after what is valid and syncs it, as one that was killed may not have.
  static Result<LogFile> open(const std::string& path, const LogContent& content);
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&&) = delete;
  ~LogFile();

  // Appends, and syncs when the last sync is a second ago, or was in another page of the file: of two pages that are not
  // synced a lost power may leave the second alone, whose records behind a gap would look like damage.
  Status append(const Record& record);
  Status sync();
  // Keeps the first `records` records.
  Status cut(uint64_t records);

 private:
  LogFile(std::string path, int descriptor, const LogHeader& header);
  Status resize(uint64_t size);
  std::string path_;
  int descriptor_;
  LogHeader header_;
  uint64_t size_ = 0;
  uint64_t synced_ = 0;  // bytes
  uint32_t before_ = 0;  // what the next record's CRC goes on from
  double synced_at_;
  std::optional<Failure> failed_;
};

}  // namespace zoexport
