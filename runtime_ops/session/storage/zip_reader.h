// ZIP archives (APPNOTE.TXT 6.3.10) whose entries are stored as they are, with ZIP64's sizes: what a packed bundle is.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "session/result.h"
#include "session/storage/open_file.h"

namespace zoexport {

struct ZipEntry {
  uint64_t offset;  // of its content in the file
  uint64_t bytes;
};

// The entries of an archive by their names. Every one lies within the file; compressed and encrypted ones, comments, and names
// that stand twice are refused, with `file.code()`.
Result<std::map<std::string, ZipEntry>> read_zip(const OpenFile& file);

}  // namespace zoexport
