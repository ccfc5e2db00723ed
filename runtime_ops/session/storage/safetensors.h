// safetensors: an 8-byte header length, a JSON header, then the tensors' bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "session/result.h"
#include "session/storage/files.h"

namespace zoexport {

// Bytes point into the file's mapping and live as long as the SafeTensors they came from.
struct TensorBytes {
  std::string dtype;  // "F32", ...
  std::vector<int64_t> shape;
  const uint8_t* data;
  size_t bytes;
};

class SafeTensors {
 public:
  // Maps and checks the file: every tensor lies within it and has the size that its dtype and shape say, and together they
  // fill it. What is refused here, Python's core/tensor_file.py refuses.
  static Result<SafeTensors> open(const std::string& path, zo_status code);
  static Result<SafeTensors> of(const OpenFile& file, MappedFile::Writes writes = MappedFile::Writes::kFault);

  const TensorBytes* find(const std::string& name) const;
  const std::map<std::string, TensorBytes>& tensors() const { return tensors_; }
  // The text under `key` of __metadata__, or an empty one.
  std::string metadata(const std::string& key) const;
  // CRC-32 of everything after the header.
  uint32_t data_crc() const;

 private:
  SafeTensors(MappedFile file, size_t start) : file_(std::move(file)), start_(start) {}
  Status check_gaps(size_t available, const std::string& fix, zo_status code, const std::string& path) const;
  MappedFile file_;
  size_t start_;
  std::map<std::string, TensorBytes> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to be written; borrows the data. `dtype` is one of ZO_*.
struct TensorToWrite {
  std::string name;
  int32_t dtype;
  std::vector<int64_t> shape;
  const void* data;
  size_t bytes;
};

// Return the head of a file with this JSON header: its length in 8 bytes, and the header, padded to align the data.
std::string safetensors_head(std::string header);

// Writes atomically, wide elements first, so that all are aligned. The metadata gets an entry "crc32" of the data, in 8
// hexadecimal digits.
Status write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                         std::map<std::string, std::string> metadata);

// `crc` as the metadata states it.
std::string crc_text(uint32_t crc);

}  // namespace zoexport
