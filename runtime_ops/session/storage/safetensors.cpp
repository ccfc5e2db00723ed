#include "session/storage/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "session/storage/crc32.h"
#include "session/storage/dtypes.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace {

constexpr uint64_t kMaxHeader = 100u << 20;  // the format's own limit

size_t dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, size_t> sizes = {{"F64", 8}, {"I64", 8}, {"U64", 8},  {"F32", 4}, {"I32", 4},
                                                      {"U32", 4}, {"F16", 2}, {"BF16", 2}, {"I16", 2}, {"U16", 2},
                                                      {"I8", 1},  {"U8", 1},  {"BOOL", 1}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

// The bytes of a shape, or SIZE_MAX where that does not fit.
size_t shape_bytes(const std::vector<int64_t>& shape, size_t element) {
  size_t bytes = element;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) {
      return SIZE_MAX;
    }
  }
  return bytes;
}

}  // namespace

Result<SafeTensors> SafeTensors::open(const std::string& path, zo_status code) {
  ZO_ASSIGN(file, OpenFile::open(path, code));
  return of(file);
}

Result<SafeTensors> SafeTensors::of(const OpenFile& opened, MappedFile::Writes writes) {
  const std::string fix = "Copy the file again from where it was made.";
  const std::string& path = opened.path();
  const zo_status code = opened.code();
  ZO_ASSIGN(file, MappedFile::of(opened, writes));
  uint64_t header_size = 0;
  if (file.size() < 8) {
    return Failure{code, path, std::to_string(file.size()) + " bytes", "a safetensors file", fix};
  }
  for (size_t i = 0; i < 8; ++i) {
    header_size |= uint64_t{file.data()[i]} << (8 * i);
  }
  if (header_size > kMaxHeader || header_size > file.size() - 8) {
    return Failure{code, path,
                   "a header of " + std::to_string(header_size) + " bytes in a file of " + std::to_string(file.size()),
                   "a whole safetensors file", fix};
  }
  const char* begin = reinterpret_cast<const char*>(file.data()) + 8;
  if (header_size == 0 || *begin != '{') {
    return Failure{code, path, "a header that does not begin with {", "a safetensors file", fix};
  }
  ZO_ASSIGN(header, parse_json(begin, begin + header_size, code, path, fix));
  SafeTensors result(std::move(file), 8 + static_cast<size_t>(header_size));
  const size_t available = result.file_.size() - result.start_;
  JsonProblems problems(code, path, fix);
  for (const auto& [name, entry] : JsonNode(&header, "", &problems).entries()) {
    if (name == "__metadata__") {
      if (entry.is_null()) {  // MLX writes it so
        continue;
      }
      for (const auto& [key, value] : entry.entries()) {
        result.metadata_[key] = value.text();
      }
      continue;
    }
    TensorBytes tensor;
    tensor.dtype = entry.member("dtype").text();
    for (const JsonNode& size : entry.member("shape").items()) {
      tensor.shape.push_back(size.integer(0, INT64_MAX));
    }
    const std::vector<JsonNode> offsets = entry.member("data_offsets").items();
    if (offsets.size() != 2) {
      entry.problem("two data_offsets");
      break;
    }
    const auto first = static_cast<size_t>(offsets[0].integer(0, INT64_MAX));
    const auto last = static_cast<size_t>(offsets[1].integer(0, INT64_MAX));
    if (first > last || last > available) {
      entry.problem("offsets within the file's " + std::to_string(available) + " bytes of data");
      break;
    }
    const size_t element = dtype_bytes(tensor.dtype);
    if (element == 0) {
      entry.member("dtype").problem("a type of whole bytes that this release knows");
      break;
    }
    if (shape_bytes(tensor.shape, element) != last - first) {
      entry.problem("as many bytes as the shape needs");
      break;
    }
    tensor.data = result.file_.data() + result.start_ + first;
    tensor.bytes = last - first;
    result.tensors_.emplace(name, std::move(tensor));
  }
  ZO_TRY(problems.status());
  ZO_TRY(result.check_gaps(available, fix, code, path));
  return result;
}

// Tensors lie end to end and fill the file, so that no byte of it belongs to two of them, or to none.
Status SafeTensors::check_gaps(size_t available, const std::string& fix, zo_status code,
                               const std::string& path) const {
  std::vector<std::pair<size_t, size_t>> places;
  for (const auto& entry : tensors_) {
    const auto begin = static_cast<size_t>(entry.second.data - (file_.data() + start_));
    places.emplace_back(begin, begin + entry.second.bytes);
  }
  std::sort(places.begin(), places.end());
  size_t end = 0;
  for (const auto& [begin, next] : places) {
    if (begin != end) {
      return Failure{code, path, "a tensor at byte " + std::to_string(begin) + " of the data",
                     "one at byte " + std::to_string(end), fix};
    }
    end = next;
  }
  return end == available ? Status()
                          : Failure{code, path, std::to_string(available) + " bytes of data",
                                    std::to_string(end) + ", as the tensors have", fix};
}

const TensorBytes* SafeTensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::string SafeTensors::metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? std::string() : found->second;
}

uint32_t SafeTensors::data_crc() const { return crc32(file_.data() + start_, file_.size() - start_); }

std::string crc_text(uint32_t crc) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", crc);
  return text;
}

std::string safetensors_head(std::string header) {
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    length[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  }
  return length + header;
}

Status write_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                         std::map<std::string, std::string> metadata) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return dtype_bytes(a.dtype) > dtype_bytes(b.dtype);
  });
  uint32_t crc = 0;
  size_t offset = 0;
  nlohmann::json header = nlohmann::json::object();
  for (const TensorToWrite& tensor : tensors) {
    const size_t end = offset + tensor.bytes;
    crc = crc32(tensor.data, tensor.bytes, crc);
    header[tensor.name] = {
        {"dtype", safetensors_dtype(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  metadata["crc32"] = crc_text(crc);
  header["__metadata__"] = metadata;
  const std::string head = safetensors_head(header.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  return write_file(path, [&](int descriptor) {
    bool written = write_all(descriptor, head.data(), head.size());
    for (const TensorToWrite& tensor : tensors) {
      written = written && write_all(descriptor, tensor.data, tensor.bytes);
    }
    // Data from a mapping that has lost its file must not take a good file's place.
    if (written && !Faults::current()->check().ok()) {
      errno = EIO;
      return false;
    }
    return written;
  });
}

}  // namespace zoexport
