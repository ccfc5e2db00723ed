#include "session/manifest/program_reader.h"

#include <algorithm>

#include "session/manifest/needs.h"
#include "session/storage/sizes.h"

namespace zoexport {
namespace {

ValueSpec read_value(const JsonNode& node) {
  ValueSpec value;
  value.name = node.member("name").text();
  value.role = node.member("role").text();
  const JsonNode dtype = node.member("dtype");
  const int32_t known = dtype_from_text(dtype.text());
  if (known < 0) {
    dtype.problem(dtype_texts());
  } else {
    value.dtype = known;
  }
  for (const JsonNode& size : node.member("shape").items()) {
    Dimension dimension;
    if (size.is_object()) {
      dimension.min = size.member("min").integer(1, kLargest);
      dimension.max = size.member("max").integer(dimension.min, kLargest);
    } else {
      dimension.min = dimension.max = size.integer(1, kLargest);
    }
    value.shape.push_back(dimension);
  }
  if (value_bytes(value) > kMostTensor) {
    node.member("shape").problem("a tensor of at most " + std::to_string(kMostTensor) + " bytes");
    value.shape.clear();
  }
  return value;
}

}  // namespace

bool stays_inside(const std::string& name) {
  return !name.empty() && name.front() != '/' && name.find("..") == std::string::npos &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return c == '\\' || static_cast<unsigned char>(c) < 0x20; });
}

// Names that do not stay inside are refused where the manifest lists its files, and every other name must be one of those.
std::string read_file_name(const JsonNode& node) {
  const std::string name = node.text();
  if (!stays_inside(name)) {
    node.problem("the name of a file in the bundle");
  }
  return name;
}

ProgramSpec read_program(const JsonNode& node) {
  ProgramSpec program;
  program.name = node.member("name").text();
  program.file = read_file_name(node.member("file"));
  program.entry_point = node.member("entry_point").text();
  program.family = node.has("family") ? node.member("family").text() : "";
  program.length = node.has("length") ? static_cast<uint32_t>(node.member("length").integer(1, kLargest)) : 0;
  for (const JsonNode& value : node.member("inputs").items()) {
    program.inputs.push_back(read_value(value));
  }
  for (const JsonNode& value : node.member("outputs").items()) {
    program.outputs.push_back(read_value(value));
  }
  return program;
}

}  // namespace zoexport
