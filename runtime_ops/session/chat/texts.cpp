#include "session/chat/texts.h"

#include <algorithm>
#include <utility>

#include "session/chat/value.h"
#include "session/text/characters.h"
#include "session/text/utf8.h"

namespace zoexport::jinja {
bool blank(char32_t character) { return is_white_space(character) || (character >= 0x1C && character <= 0x1F); }

std::string cut(const std::string& text, const std::optional<std::string>& set, bool begin, bool end) {
  const auto taken = [&](size_t at, size_t size) {
    return set ? set->find(text.substr(at, size)) != std::string::npos : blank(next_character(text, at));
  };
  size_t first = 0, last = text.size();
  while (begin && first < last && taken(first, character_bytes(text[first]))) {
    first += character_bytes(text[first]);
  }
  while (end && last > first) {
    size_t at = last - 1;
    while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) {
      --at;
    }
    if (!taken(at, last - at)) {
      break;
    }
    last = at;
  }
  return text.substr(first, last - first);
}

size_t count(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](char one) { return (static_cast<unsigned char>(one) & 0xC0) != 0x80; }));
}

std::string character(const std::string& text, size_t place) {
  size_t at = 0;
  for (; place > 0; --place) {
    at += character_bytes(text[at]);
  }
  return text.substr(at, character_bytes(text[at]));
}

List lines_of(Costs& costs, const std::string& text) {
  List lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t one = next_character(text, at);
    const bool breaks =
        (one >= 0x0A && one <= 0x0D) || (one >= 0x1C && one <= 0x1E) || one == 0x85 || one == 0x2028 || one == 0x2029;
    if (!breaks) {
      continue;
    }
    if (!costs.spend(kOfPart)) {
      return {};
    }
    lines.emplace_back(text.substr(begin, here - begin));
    at += one == '\r' && text.compare(at, 1, "\n") == 0 ? 1 : 0;
    begin = at;
  }
  if (begin < text.size()) {
    lines.emplace_back(text.substr(begin));
  }
  return lines;
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

List split(Costs& costs, const std::string& text, const std::optional<std::string>& separator, int64_t most,
           bool right) {
  std::vector<std::pair<size_t, size_t>> cuts;  // begin and end of what separates
  if (separator) {
    if (right) {
      for (size_t at = text.rfind(*separator); at != std::string::npos;
           at = at < separator->size() ? std::string::npos : text.rfind(*separator, at - separator->size())) {
        if (!costs.spend(kOfPart)) {
          return {};
        }
        cuts.emplace_back(at, at + separator->size());
      }
      std::reverse(cuts.begin(), cuts.end());
    } else {
      for (size_t at = text.find(*separator); at != std::string::npos;
           at = text.find(*separator, at + separator->size())) {
        if (!costs.spend(kOfPart)) {
          return {};
        }
        cuts.emplace_back(at, at + separator->size());
      }
    }
  } else {
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      if (blank(next_character(text, at))) {
        if (!cuts.empty() && cuts.back().second == begin) {
          cuts.back().second = at;
        } else if (costs.spend(kOfPart)) {
          cuts.emplace_back(begin, at);
        } else {
          return {};
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
