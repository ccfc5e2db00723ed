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
  // Whether a word is short enough to be kept.
  static bool keeps(std::string_view word);
  // Appends the tokens of a word that was kept; false where it was not. Without a copy of a word that never is.
  bool find(std::string_view word, std::vector<uint32_t>& ids);
  // Keeps the tokens from `begin` on as those of the word that find was last asked for.
  void keep(const std::vector<uint32_t>& ids, size_t begin);

 private:
  std::unordered_map<std::string, std::vector<uint32_t>> words_;
  std::string key_;
};

}  // namespace zoexport
