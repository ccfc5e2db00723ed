// Characters and what each becomes, as the tables made from the library tokenizers have them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace zoexport {

struct Decomposition {
  uint32_t code;
  uint16_t start;  // in the table's text
  uint8_t length;
};

// The entry of a character, or null. The table is in the order of codes.
template <size_t N>
const Decomposition* find(const Decomposition (&table)[N], uint32_t code) {
  const auto* entry =
      std::lower_bound(std::begin(table), std::end(table), code,
                       [](const Decomposition& candidate, uint32_t value) { return candidate.code < value; });
  return entry != std::end(table) && entry->code == code ? entry : nullptr;
}

}  // namespace zoexport
