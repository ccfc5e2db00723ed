// Program files of the Vulkan engine with one program, for tests.
#pragma once

#include <algorithm>
#include <fstream>
#include <iterator>
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
  spec.entry_point = "p";
  spec.file = "model.vulkan.json";
  return zoexport::vulkan::read_program_file(text, "model.vulkan.json", {&spec});
}

// The inputs and the output of tests/data/vulkan_program.json: a lookup, a product of integers, a row program of two phases,
// attention, and labels; 4 rows of 32 numbers.
inline zoexport::ProgramSpec spec() {
  zoexport::ProgramSpec made;
  made.inputs = {value("table", "weight", ZO_FLOAT32, {10, 32}), value("tokens", "tokens", ZO_INT64, {4}),
                 value("codes", "weight", ZO_UINT8, {4, 16}), value("scales", "weight", ZO_BFLOAT16, {4, 1}),
                 value("bias", "state", ZO_FLOAT32, {4})};
  made.outputs = {value("out", "activation", ZO_FLOAT32, {4, 16})};
  return made;
}

// That file, or another for the same inputs: vulkan_parts.json has products of a matrix in two windows, and of its gradient.
inline std::string whole(const std::string& name = "vulkan_program.json") {
  std::ifstream file(ZOEXPORT_SOURCE_DIR "/tests/data/" + name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Whether the last results of a product lie in the pool.
inline bool ends_within(const zoexport::vulkan::Dispatch& product, uint64_t words) {
  const std::vector<uint32_t>& sizes = product.pushed;
  const bool is_half = product.constants.size() > 10 && product.constants[10] != 0;
  const uint64_t rows = uint64_t{product.groups[2]} * sizes[0], past = sizes[9] + (rows - 1) * sizes[14] + sizes[1];
  return past <= (is_half ? 2 : 1) * words;
}

// Whether the program of an accepted file, for spec(), keeps to its buffers and no dispatch writes what it reads.
inline bool is_within(const zoexport::vulkan::ProgramFile& file) {
  const zoexport::vulkan::Program& program = file.programs.at("p");
  bool fits = program.words <= file.words && file.words <= zoexport::vulkan::kMostBytes / 4;
  for (const zoexport::vulkan::Dispatch& dispatch : program.dispatches) {
    fits = fits && dispatch.window < file.windows.size() && dispatch.pushed.size() <= zoexport::vulkan::kMostPushed;
    fits = fits && (dispatch.shader != zoexport::vulkan::Shader::kProduct || ends_within(dispatch, program.words));
    for (const zoexport::vulkan::Span& written : dispatch.writes) {
      fits = fits && written.begin < written.end && written.end <= program.words;
      for (const zoexport::vulkan::Span& read : dispatch.reads) {
        fits = fits && read.end <= program.words && !read.meets(written);
      }
    }
    fits = fits && std::all_of(std::begin(dispatch.groups), std::end(dispatch.groups),
                               [](uint32_t groups) { return groups > 0 && groups <= 65535; });
  }
  const uint64_t codes = 64, scales = 8;
  for (size_t i = 2; i < 4; ++i) {
    for (const zoexport::vulkan::WindowPart& part : program.inputs[i].parts) {
      fits = fits && part.from + part.bytes <= (i == 2 ? codes : scales);
      fits = fits && part.window < file.windows.size() && part.at + part.bytes <= file.windows[part.window];
    }
  }
  for (const zoexport::vulkan::Gather& gather : program.gathers) {
    fits = fits && gather.to + 32 * gather.count <= program.words && gather.first + gather.count <= 4;
  }
  return fits;
}

}  // namespace vulkan_files
