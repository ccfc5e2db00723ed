// Text of the tokens that follow a prompt, as it becomes certain, up to the first stop string.
#pragma once

#include <string>
#include <vector>

#include "session/result.h"
#include "session/text/tokenizer.h"

namespace zoexport {

// Refuses stop strings that no text could end before.
Status check_stops(const std::vector<std::string>& stops);

class StoppedText {
 public:
  // Without special tokens. The tokenizer outlives this object.
  StoppedText(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : stream_(tokenizer.stream(/*skip_special=*/true)), stops_(std::move(stops)) {}

  // Continue the text of a prompt, which itself is not returned; the blank before the first new word is.
  Status follow(const Tokenizer& tokenizer, const std::vector<int64_t>& prompt);
  // What is certain of the text with this token, and was not before: whole characters, and no beginning of a stop string.
  Result<std::string> push(int64_t token);
  // The rest.
  std::string finish() { return take(stream_.finish(), /*last=*/true); }

  // Return whether a stop string was found: nothing follows.
  bool stopped() const { return stopped_; }
  // All that was given.
  const std::string& text() const { return text_; }

 private:
  std::string take(std::string piece, bool last);

  TextStream stream_;
  size_t before_ = 0;  // bytes of the prompt's text that are still to come
  std::vector<std::string> stops_;
  std::string held_;  // at its end, what may be the beginning of a stop string
  std::string text_;
  bool stopped_ = false;
};

}  // namespace zoexport
