#include "session/chat/texts.h"

#include <algorithm>
#include <utility>

#include "session/chat/value.h"
#include "session/text/characters.h"
#include "session/text/utf8.h"

namespace zoexport::jinja {
namespace {

bool blank(char32_t character) { return is_white_space(character) || (character >= 0x1C && character <= 0x1F); }

}  // namespace

std::string cut(const std::string& text, const std::optional<std::string>& set, bool begin, bool end) {
  const auto taken = [&](const std::string& one) {
    size_t at = 0;
    return set ? set->find(one) != std::string::npos : blank(next_character(one, at));
  };
  const std::vector<std::string> all = characters(text);
  size_t first = 0, last = all.size();
  while (begin && first < last && taken(all[first])) {
    ++first;
  }
  while (end && last > first && taken(all[last - 1])) {
    --last;
  }
  std::string result;
  for (size_t i = first; i < last; ++i) {
    result += all[i];
  }
  return result;
}

std::string lower(const std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    append_lower(result, next_character(text, at));
  }
  return result;
}

bool ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char one) { return static_cast<unsigned char>(one) < 0x80; });
}

std::string replaced(const std::string& text, const std::string& old, const std::string& with, int64_t most) {
  std::string result;
  if (old.empty()) {  // between all characters, as Python does
    for (const std::string& one : characters(text)) {
      result += (most-- != 0 ? with : (most = 0, "")) + one;
    }
    return result + (most != 0 ? with : "");
  }
  size_t at = 0;
  for (size_t found = text.find(old); found != std::string::npos && most-- != 0; found = text.find(old, at)) {
    result.append(text, at, found - at);
    result += with;
    at = found + old.size();
  }
  return result.append(text, at, std::string::npos);
}

List split(const std::string& text, const std::optional<std::string>& separator, int64_t most, bool right) {
  std::vector<std::pair<size_t, size_t>> cuts;  // begin and end of what separates
  if (separator) {
    if (right) {
      for (size_t at = text.rfind(*separator); at != std::string::npos;
           at = at < separator->size() ? std::string::npos : text.rfind(*separator, at - separator->size())) {
        cuts.emplace_back(at, at + separator->size());
      }
      std::reverse(cuts.begin(), cuts.end());
    } else {
      for (size_t at = text.find(*separator); at != std::string::npos;
           at = text.find(*separator, at + separator->size())) {
        cuts.emplace_back(at, at + separator->size());
      }
    }
  } else {
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      if (blank(next_character(text, at))) {
        if (!cuts.empty() && cuts.back().second == begin) {
          cuts.back().second = at;
        } else {
          cuts.emplace_back(begin, at);
        }
      }
    }
  }
  size_t begin = 0, end = text.size();
  if (!separator) {
    // White space at an end separates nothing; at the far one it stays where all has been split off before.
    const auto kept = [&](bool far) { return far && most >= 0 && static_cast<int64_t>(cuts.size()) > most; };
    const bool last = !cuts.empty() && cuts.back().second == text.size();
    if (last && right) {
      end = cuts.back().first;
      cuts.pop_back();
    }
    if (!cuts.empty() && cuts.front().first == 0 && !kept(right)) {
      begin = cuts.front().second;
      cuts.erase(cuts.begin());
    }
    if (last && !right && !cuts.empty() && !kept(true)) {
      end = cuts.back().first;
      cuts.pop_back();
    }
    if (begin >= end) {
      return {};
    }
  }
  if (most >= 0 && cuts.size() > static_cast<size_t>(most)) {
    if (right) {
      cuts.erase(cuts.begin(), cuts.end() - most);
    } else {
      cuts.resize(static_cast<size_t>(most));
    }
  }
  List parts;
  for (const auto& [first, last] : cuts) {
    parts.emplace_back(text.substr(begin, first - begin));
    begin = last;
  }
  parts.emplace_back(text.substr(begin, end - begin));
  return parts;
}

}  // namespace zoexport::jinja
