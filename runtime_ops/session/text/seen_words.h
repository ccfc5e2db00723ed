// The tokens of words that a model has seen: texts repeat most of their words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace zoexport {

class SeenWords {
 public:
  // Return whether a word is short enough to be kept.
  static bool keeps(std::string_view word);
  // Append the tokens of a kept word; false if it was not kept. Words that are too long to keep are not copied.
  bool find(std::string_view word, std::vector<uint32_t>& ids);
  // Keeps the tokens from `begin` on as those of the word that find was last asked for.
  void keep(const std::vector<uint32_t>& ids, size_t begin);

 private:
  std::unordered_map<std::string, std::vector<uint32_t>> words_;
  std::string key_;
};

}  // namespace zoexport
