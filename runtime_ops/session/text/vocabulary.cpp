#include "session/text/vocabulary.h"

#include <functional>

namespace zoexport {

bool Vocabulary::add(std::string_view text, uint32_t id) {
  if (id >= kMostTokens || text.size() > UINT32_MAX - 1 - texts_.size()) {
    return false;
  }
  if (2 * (count_ + 1) > slots_.size()) {
    grow();
  }
  uint32_t& place = slots_[slot(text)];
  if (place != kNothing || (id < places_.size() && places_[id].length != kNothing)) {
    return false;
  }
  if (id >= places_.size()) {
    places_.resize(size_t{id} + 1);
  }
  places_[id] = {static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(text.size())};
  texts_.append(text);
  place = id;
  ++count_;
  return true;
}

std::optional<uint32_t> Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) {
    return std::nullopt;
  }
  const uint32_t id = slots_[slot(text)];
  return id == kNothing ? std::nullopt : std::optional<uint32_t>(id);
}

std::optional<std::string_view> Vocabulary::text(uint32_t id) const {
  if (id >= places_.size() || places_[id].length == kNothing) {
    return std::nullopt;
  }
  return at(id);
}

size_t Vocabulary::slot(std::string_view text) const {
  const size_t mask = slots_.size() - 1;
  size_t index = std::hash<std::string_view>{}(text)&mask;
  while (slots_[index] != kNothing && at(slots_[index]) != text) {
    index = (index + 1) & mask;
  }
  return index;
}

void Vocabulary::grow() {
  slots_.assign(slots_.empty() ? 1024 : 2 * slots_.size(), kNothing);
  for (uint32_t id = 0; id < places_.size(); ++id) {
    if (places_[id].length != kNothing) {
      slots_[slot(at(id))] = id;
    }
  }
}

}  // namespace zoexport
