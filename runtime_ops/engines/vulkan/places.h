// Locations of a program file's tensors in the pool.
#pragma once

#include "engines/vulkan/program_file.h"
#include "session/storage/json_reader.h"

namespace zoexport {
namespace vulkan {

inline uint64_t elements_of_word(const Place& place) { return place.is_half ? 2 : 1; }

// Return where `count` numbers begin in a pool of `words` words: a word, or {"half": element} for fp16. Problems go to
// the node's document.
inline Place read_place(const JsonNode& node, uint64_t count, uint64_t words) {
  const bool is_half = node.is_object();
  const uint64_t room = is_half ? 2 * words : words;
  if (count > room) {
    node.problem("a tensor within the pool");
    return {};
  }
  const auto most = static_cast<int64_t>(room - count);
  return {static_cast<uint32_t>(is_half ? node.member("half").integer(0, most) : node.integer(0, most)), is_half};
}

// The words that `count` numbers touch.
inline Span span_of(const Place& place, uint64_t count) {
  const uint64_t of_word = elements_of_word(place);
  return {place.at / of_word, (place.at + count + of_word - 1) / of_word};
}

inline double bytes_of(const Place& place, uint64_t count) {
  return (place.is_half ? 2 : 4) * static_cast<double>(count);
}

}  // namespace vulkan
}  // namespace zoexport
