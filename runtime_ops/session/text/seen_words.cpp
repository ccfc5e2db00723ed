#include "session/text/seen_words.h"

namespace zoexport {
namespace {

// Words that are kept, and the bytes of the longest.
constexpr size_t kMostSeen = 10000;
constexpr size_t kLongestSeen = 128;

}  // namespace

bool SeenWords::keeps(std::string_view word) { return word.size() <= kLongestSeen; }

bool SeenWords::find(std::string_view word, std::vector<uint32_t>& ids) {
  if (!keeps(word)) {
    return false;
  }
  key_ = word;
  const auto found = words_.find(key_);
  if (found == words_.end()) {
    return false;
  }
  ids.insert(ids.end(), found->second.begin(), found->second.end());
  return true;
}

void SeenWords::keep(const std::vector<uint32_t>& ids, size_t begin) {
  if (words_.size() >= kMostSeen) {
    words_.clear();
  }
  words_.emplace(key_, std::vector<uint32_t>(ids.begin() + static_cast<ptrdiff_t>(begin), ids.end()));
}

}  // namespace zoexport
