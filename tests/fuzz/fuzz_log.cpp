// A trajectory log: the records that are read are those that are written. An input that begins with an odd byte gets the
// checksums that its content has.
#include <algorithm>

#include "fuzz.h"
#include "session/storage/crc32.h"
#include "session/storage/trajectory.h"

namespace {

uint32_t sign(std::string& bytes, size_t begin, size_t size, uint32_t before) {
  const uint32_t crc = zoexport::crc32(bytes.data() + begin, size - 4, before);
  for (size_t i = 0; i < 4; ++i) {
    bytes[begin + size - 4 + i] = static_cast<char>(crc >> (8 * i));
  }
  return crc;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace zoexport;
  if (size == 0) {
    return 0;
  }
  std::string bytes = fuzz::text(data + 1, size - 1);
  if (data[0] % 2 == 1 && bytes.size() >= kLogHeaderBytes) {
    // From format 2 on, each goes on from the one before.
    const bool chained = bytes[7] != 1;
    uint32_t crc = sign(bytes, 0, kLogHeaderBytes, 0);
    const uint32_t queries = static_cast<uint8_t>(bytes[48]);  // the least of its bytes
    const size_t record = record_bytes(queries);
    for (size_t at = kLogHeaderBytes; at + record <= bytes.size(); at += record) {
      crc = sign(bytes, at, record, chained ? crc : 0);
    }
  }
  const auto log = parse_log(bytes, "log");
  if (!log.ok()) {
    return 0;
  }
  MUST(log->valid_bytes <= bytes.size());
  const std::string header = encode_header(log->header);
  // Eight bytes of the header are reserved.
  MUST(std::equal(header.begin(), header.begin() + 52, bytes.begin()));
  size_t at = kLogHeaderBytes;
  for (const Record& record : log->records) {
    const std::string again = encode_record(record);
    // Patterns of numbers that are none may change on the way; the rest must not.
    MUST(again.size() == record_bytes(log->header.queries) && bytes.compare(at, 4, again, 0, 4) == 0);
    at += again.size();
  }
  MUST(at == log->valid_bytes);
  return 0;
}
