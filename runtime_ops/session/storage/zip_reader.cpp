#include "session/storage/zip_reader.h"

#include <cerrno>
#include <vector>

#include "session/storage/files.h"

namespace zoexport {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kLocatorSignature = 0x07064b50, kEnd64Signature = 0x06064b50,
                   kEntrySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr size_t kEnd = 22, kLocator = 20, kEnd64 = 56, kEntry = 46, kLocal = 30;
constexpr uint16_t kZip64 = 1;      // the extra field with sizes of 64 bits
constexpr uint16_t kEncrypted = 1;  // of an entry's flags
constexpr uint32_t kInZip64 = UINT32_MAX;
constexpr uint64_t kMostDirectory = uint64_t{16} << 20;

// Little-endian numbers of memory, within bounds that the caller has compared.
template <typename T>
T number(const uint8_t* bytes) {
  T value = 0;
  for (size_t i = sizeof(T); i-- > 0;) {
    value = static_cast<T>(value << 8 | bytes[i]);
  }
  return value;
}
uint16_t u16(const uint8_t* bytes) { return number<uint16_t>(bytes); }
uint32_t u32(const uint8_t* bytes) { return number<uint32_t>(bytes); }
uint64_t u64(const uint8_t* bytes) { return number<uint64_t>(bytes); }

class Reader {
 public:
  explicit Reader(const OpenFile& file) : file_(file) {}

  Result<std::map<std::string, ZipEntry>> read() {
    ZO_ASSIGN(directory, find_directory());
    std::map<std::string, ZipEntry> entries;
    for (size_t at = 0; at < directory.size();) {
      const uint8_t* const entry = directory.data() + at;
      const size_t left = directory.size() - at;
      if (left < kEntry || u32(entry) != kEntrySignature) {
        return damaged("a damaged directory");
      }
      const size_t name_size = u16(entry + 28), extra_size = u16(entry + 30);
      const size_t size = kEntry + name_size + extra_size + u16(entry + 32);
      if (left < size) {
        return damaged("a directory that ends too early");
      }
      const std::string name(reinterpret_cast<const char*>(entry) + kEntry, name_size);
      if ((u16(entry + 8) & kEncrypted) != 0 || u16(entry + 10) != 0) {
        return damaged(name + " compressed or encrypted");
      }
      ZO_ASSIGN(found, find_content(name, entry, entry + kEntry + name_size, extra_size));
      if (!entries.emplace(name, found).second) {
        return damaged(name + " twice");
      }
      at += size;
    }
    return entries;
  }

 private:
  Failure damaged(const std::string& found) const {
    return {file_.code(), file_.path(), found, "a bundle that 'zoexport pack' wrote",
            "Pack it again, or copy it again."};
  }

  Result<std::vector<uint8_t>> bytes(uint64_t offset, uint64_t size) const {
    if (offset > file_.size() || size > file_.size() - offset) {
      return damaged("an archive that is cut short");
    }
    std::vector<uint8_t> read(static_cast<size_t>(size));
    const ssize_t got = file_.read_at(read.data(), read.size(), offset);
    if (got < 0) {
      return system_failure(file_.code(), file_.path(), errno, false);
    }
    return static_cast<size_t>(got) == read.size() ? Result<std::vector<uint8_t>>(std::move(read))
                                                   : damaged("an archive that is cut short");
  }

  // The central directory, which ends the file but for its description.
  Result<std::vector<uint8_t>> find_directory() {
    if (file_.size() < kEnd) {
      return damaged("no ZIP archive");
    }
    const uint64_t end = file_.size() - kEnd;
    ZO_ASSIGN(description, bytes(end, kEnd));
    if (u32(description.data()) != kEndSignature || u16(description.data() + 20) != 0) {
      return damaged("no ZIP archive, or one that is cut short");
    }
    uint64_t size = u32(description.data() + 12);
    begin_ = u32(description.data() + 16);
    if (size == kInZip64 || begin_ == kInZip64 || u16(description.data() + 10) == UINT16_MAX) {
      if (end < kLocator) {
        return damaged("a damaged archive");
      }
      ZO_ASSIGN(locator, bytes(end - kLocator, kLocator));
      if (u32(locator.data()) != kLocatorSignature) {
        return damaged("a damaged archive");
      }
      ZO_ASSIGN(description64, bytes(u64(locator.data() + 8), kEnd64));
      if (u32(description64.data()) != kEnd64Signature) {
        return damaged("a damaged archive");
      }
      size = u64(description64.data() + 40);
      begin_ = u64(description64.data() + 48);
    }
    if (size > kMostDirectory) {
      return damaged("a directory of " + std::to_string(size) + " bytes");
    }
    return bytes(begin_, size);
  }

  // Find an entry's content: it follows the entry's own header, which repeats the name.
  Result<ZipEntry> find_content(const std::string& name, const uint8_t* entry, const uint8_t* extra,
                                size_t extra_size) const {
    uint64_t stored = u32(entry + 20), size = u32(entry + 24), header = u32(entry + 42);
    for (size_t at = 0; at + 4 <= extra_size;) {
      const size_t field = u16(extra + at + 2);
      if (field > extra_size - at - 4) {
        return damaged("a damaged directory");
      }
      const uint8_t* wide = extra + at + 4;
      const uint8_t* const wide_end = wide + field;
      // The field has those of these three sizes that exceed 32 bits, in this order.
      for (uint64_t* value : {&size, &stored, &header}) {
        if (u16(extra + at) == kZip64 && *value == kInZip64 && wide_end - wide >= 8) {
          *value = u64(wide);
          wide += 8;
        }
      }
      at += 4 + field;
    }
    if (stored != size) {
      return damaged(name + " of two sizes");
    }
    ZO_ASSIGN(local, bytes(header, kLocal));
    const uint64_t offset = header + kLocal + u16(local.data() + 26) + u16(local.data() + 28);
    ZO_ASSIGN(repeated, bytes(header + kLocal, u16(local.data() + 26)));
    if (u32(local.data()) != kLocalSignature || std::string(repeated.begin(), repeated.end()) != name) {
      return damaged("a damaged entry of " + name);
    }
    if (offset > begin_ || size > begin_ - offset) {
      return damaged(name + ", which is cut short");
    }
    return ZipEntry{offset, size};
  }

  const OpenFile& file_;
  uint64_t begin_ = 0;  // of the directory
};

}  // namespace

Result<std::map<std::string, ZipEntry>> read_zip(const OpenFile& file) { return Reader(file).read(); }

}  // namespace zoexport
