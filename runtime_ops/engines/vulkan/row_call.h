// The call `rows` of a program file: a row program in phases, checked, and as the words that shaders/rows.comp reads.
#pragma once

#include "engines/vulkan/program_file.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace vulkan {

// Appends the program to `code`, and fills a dispatch of it. `words` are those of the pool. Problems go to the node's document.
Dispatch read_row_call(const JsonNode& call, uint64_t words, std::vector<uint32_t>& code);

}  // namespace vulkan
}  // namespace zoexport
