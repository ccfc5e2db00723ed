// Program files of the Vulkan engine with one program, for tests.
#pragma once

#include <string>
#include <vector>

#include "engines/vulkan/program_file.h"

namespace vulkan_files {

inline zoexport::ValueSpec value(const std::string& name, const std::string& role, int32_t dtype,
                                 const std::vector<int64_t>& shape) {
  zoexport::ValueSpec spec;
  spec.name = name;
  spec.role = role;
  spec.dtype = dtype;
  for (const int64_t size : shape) {
    spec.shape.push_back({size, size});
  }
  return spec;
}

// A file whose program `p` has `body` beside its words.
inline std::string file(uint64_t words, const std::string& body, const std::string& windows = "64") {
  return R"({"format":"zoexport-vulkan-1","windows":[)" + windows + R"(],"programs":{"p":{"words":)" +
         std::to_string(words) + "," + body + "}}}";
}

inline zoexport::Result<zoexport::vulkan::ProgramFile> read(const std::string& text, zoexport::ProgramSpec& spec) {
  spec.name = "p";
  spec.method = "p";
  spec.file = "model.vulkan.json";
  return zoexport::vulkan::read_program_file(text, "model.vulkan.json", {&spec});
}

}  // namespace vulkan_files
