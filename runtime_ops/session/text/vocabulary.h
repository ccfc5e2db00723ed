// Tokens by their text and by their number, in as little memory as they need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zoexport {

// Above every tokenizer's; what a table by number may grow to.
inline constexpr uint32_t kMostTokens = uint32_t{1} << 22;

class Vocabulary {
 public:
  // Add a token; false, and nothing added, if text or number is already present or the number is not below kMostTokens.
  bool add(std::string_view text, uint32_t id);
  std::optional<uint32_t> find(std::string_view text) const;
  // Return a token's text; valid until the next add.
  std::optional<std::string_view> text(uint32_t id) const;
  size_t size() const { return count_; }

 private:
  struct Place {
    uint32_t start = 0;
    uint32_t length = kNothing;
  };
  static constexpr uint32_t kNothing = UINT32_MAX;

  // Return the hash slot of the text, or the empty slot for inserting it.
  size_t slot(std::string_view text) const;
  std::string_view at(uint32_t id) const { return {texts_.data() + places_[id].start, places_[id].length}; }
  void grow();

  std::string texts_;
  std::vector<Place> places_;    // by number
  std::vector<uint32_t> slots_;  // numbers by the hash of their text, open addressing; kNothing where empty
  size_t count_ = 0;
};

}  // namespace zoexport
