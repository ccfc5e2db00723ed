// The trajectory log: one small record a step, from which a zeroth-order run can be recomputed (docs/session.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "session/result.h"

namespace zoexport {

struct Record {
  uint32_t step = 0;
  float lr = 0;
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

std::string encode_header(const LogHeader& header);
std::string encode_record(const Record& record);

struct LogContent {
  LogHeader header;
  std::vector<Record> records;
  uint64_t valid_bytes = 0;  // where the log ends: what follows is torn or damaged
};

// Reads a log. A damaged header is a failure; records end at the first that is torn, damaged or out of order.
Result<LogContent> parse_log(const std::string& bytes, const std::string& path);

// The open log of a run. Every failure leaves the file as it was before the call.
class LogFile {
 public:
  // Opens an existing log for appending and cuts it to `valid_bytes`.
  static Result<LogFile> open(const std::string& path, uint64_t valid_bytes, uint32_t queries);
  LogFile(LogFile&& other) noexcept;
  LogFile& operator=(LogFile&&) = delete;
  ~LogFile();

  // Appends, and syncs when the last sync is a second ago.
  Status append(const Record& record);
  Status sync();
  // Keeps the first `records` records.
  Status cut(uint64_t records);

 private:
  LogFile(std::string path, int descriptor, uint64_t size, uint32_t queries);
  Status resize(uint64_t size);
  std::string path_;
  int descriptor_;
  uint64_t size_;
  uint32_t queries_;
  double synced_at_;
};

}  // namespace zoexport
