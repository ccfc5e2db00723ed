#include "session/text/word_piece.h"

#include <optional>

#include "session/text/utf8.h"

namespace zoexport {
namespace {

bool longer_than(std::string_view word, uint64_t characters) {
  uint64_t count = 0;
  for (size_t at = 0; at < word.size() && count <= characters; at += character_bytes(word[at])) {
    ++count;
  }
  return count > characters;
}

}  // namespace

WordPiece::WordPiece(Vocabulary vocabulary, Options options)
    : pieces_(std::move(vocabulary)), options_(std::move(options)), inside_(pieces_.begin()) {
  for (const char byte : options_.prefix) {
    inside_ = pieces_.next(inside_, byte);
  }
}

void WordPiece::encode(std::string_view word, std::vector<uint32_t>& ids) const {
  if (seen_.find(word, ids)) {
    return;
  }
  const size_t begin = ids.size();
  if (longer_than(word, options_.most_characters) || !cut(word, ids)) {
    ids.resize(begin);
    ids.push_back(options_.unknown);
  }
  if (SeenWords::keeps(word)) {
    seen_.keep(ids, begin);
  }
}

// Split a word into tokens; false if no token fits.
bool WordPiece::cut(std::string_view word, std::vector<uint32_t>& ids) const {
  for (size_t at = 0; at < word.size();) {
    std::optional<uint32_t> longest;
    size_t end = at;
    Pieces::Walk walk = at == 0 ? pieces_.begin() : inside_;
    for (size_t i = at; i < word.size() && !walk.empty(); ++i) {
      walk = pieces_.next(walk, word[i]);
      if (const auto token = pieces_.token(walk)) {
        longest = token;
        end = i + 1;
      }
    }
    if (!longest) {
      return false;
    }
    ids.push_back(*longest);
    at = end;
  }
  return true;
}

}  // namespace zoexport
