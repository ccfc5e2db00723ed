#include "session/generate/stopped_text.h"

#include <algorithm>

#include "session/text/utf8.h"

namespace zoexport {

Status check_stops(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty() || valid_utf8(stop) != stop.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "stop string", stop.empty() ? "an empty text" : "bytes that are no UTF-8",
                     "a text in UTF-8", "Leave it out, or give the text that is to end the answer."};
    }
  }
  return {};
}

Status StoppedText::follow(const Tokenizer& tokenizer, const std::vector<int64_t>& prompt) {
  ZO_ASSIGN(whole, tokenizer.decode(prompt, /*skip_special=*/true));
  size_t given = 0;
  for (const int64_t token : prompt) {
    ZO_ASSIGN(piece, stream_.push(token));
    given += piece.size();
  }
  before_ = whole.size() - std::min(whole.size(), given);
  return {};
}

Result<std::string> StoppedText::push(int64_t token) {
  ZO_ASSIGN(piece, stream_.push(token));
  return take(piece, /*last=*/false);
}

std::string StoppedText::take(std::string piece, bool last) {
  if (stopped_) {
    return {};
  }
  const size_t known = std::min(before_, piece.size());
  piece.erase(0, known);
  before_ -= known;
  held_ += piece;
  size_t end = held_.size();
  for (const std::string& stop : stops_) {
    const size_t found = held_.find(stop);
    if (found != std::string::npos) {
      stopped_ = true;
      end = std::min(end, found);
    }
  }
  // The longest end that a stop string begins with.
  for (size_t begin = 0; !stopped_ && !last && begin < end; ++begin) {
    const bool begins = std::any_of(stops_.begin(), stops_.end(), [&](const std::string& stop) {
      return held_.size() - begin < stop.size() &&
             held_.compare(begin, std::string::npos, stop, 0, held_.size() - begin) == 0;
    });
    end = begins ? begin : end;
  }
  std::string given = held_.substr(0, end);
  held_.erase(0, end);
  text_ += given;
  return given;
}

}  // namespace zoexport
