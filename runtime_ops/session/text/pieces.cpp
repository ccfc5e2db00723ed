#include "session/text/pieces.h"

#include <algorithm>

namespace zoexport {

Pieces::Pieces(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  order_.reserve(vocabulary_.size());
  for (uint32_t id = 0; order_.size() < vocabulary_.size(); ++id) {
    if (vocabulary_.text(id)) {
      order_.push_back(id);
    }
  }
  // Order as unsigned bytes; a text comes before the longer texts that begin with it.
  std::sort(order_.begin(), order_.end(),
            [this](uint32_t a, uint32_t b) { return *vocabulary_.text(a) < *vocabulary_.text(b); });
  for (const uint32_t id : order_) {
    const std::string_view text = *vocabulary_.text(id);
    // The empty text is before all bytes.
    ++first_bytes_[text.empty() ? 0 : static_cast<unsigned char>(text[0]) + size_t{1}];
  }
  for (size_t byte = 1; byte < first_bytes_.size(); ++byte) {
    first_bytes_[byte] += first_bytes_[byte - 1];
  }
}

Pieces::Walk Pieces::next(const Walk& walk, char byte) const {
  const auto value = static_cast<unsigned char>(byte);
  if (walk.bytes == 0) {
    return {first_bytes_[value], first_bytes_[value + size_t{1}], 1};
  }
  const auto at = [&](uint32_t id) {
    const std::string_view text = *vocabulary_.text(id);
    return text.size() == walk.bytes ? -1 : static_cast<int>(static_cast<unsigned char>(text[walk.bytes]));
  };
  const auto begin = order_.begin() + walk.first;
  const auto end = order_.begin() + walk.last;
  const auto first = std::partition_point(begin, end, [&](uint32_t id) { return at(id) < value; });
  const auto last = std::partition_point(first, end, [&](uint32_t id) { return at(id) == value; });
  return {static_cast<uint32_t>(first - order_.begin()), static_cast<uint32_t>(last - order_.begin()), walk.bytes + 1};
}

std::optional<uint32_t> Pieces::token(const Walk& walk) const {
  if (walk.empty() || vocabulary_.text(order_[walk.first])->size() != walk.bytes) {
    return std::nullopt;
  }
  return order_[walk.first];
}

}  // namespace zoexport
