// Characters and what each becomes, as the tables made from the library tokenizers have them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace zoexport {

struct Decomposition {
  uint32_t code;
  uint8_t length;  // how many characters it becomes, behind those of the entries before
};

// Entries in the order of their codes, and the text of all of them.
template <size_t N, size_t M>
class Decompositions {
 public:
  constexpr Decompositions(const Decomposition (&table)[N], const uint32_t (&text)[M]) : table_(table), text_(text) {
    for (size_t entry = 0; entry < N; ++entry) {
      starts_[entry + 1] = static_cast<uint16_t>(starts_[entry] + table[entry].length);
    }
  }

  // Call `take` with each character of the decomposition; false if the character has no entry.
  template <typename Take>
  bool each(uint32_t code, Take take) const {
    const auto* entry =
        std::lower_bound(std::begin(table_), std::end(table_), code,
                         [](const Decomposition& candidate, uint32_t value) { return candidate.code < value; });
    if (entry == std::end(table_) || entry->code != code) {
      return false;
    }
    const auto index = static_cast<size_t>(entry - table_);
    std::for_each(text_ + starts_[index], text_ + starts_[index + 1], take);
    return true;
  }

 private:
  const Decomposition (&table_)[N];
  const uint32_t (&text_)[M];
  std::array<uint16_t, N + 1> starts_{};
};

}  // namespace zoexport
