#include "session/text/unigram.h"

#include <algorithm>

#include "session/text/utf8.h"

namespace zoexport {
namespace {

// By how much an unknown character is below the unlikeliest token, as in SentencePiece.
constexpr double kPenalty = 10.0;

}  // namespace

Unigram::Unigram(Vocabulary vocabulary, std::vector<double> scores, uint32_t unknown, bool byte_fallback)
    : pieces_(std::move(vocabulary)),
      scores_(std::move(scores)),
      unknown_(unknown),
      unknown_score_(*std::min_element(scores_.begin(), scores_.end()) - kPenalty) {
  if (byte_fallback) {
    bytes_ = ByteTokens(pieces_.vocabulary());
  }
}

void Unigram::encode(std::string_view word, std::vector<uint32_t>& ids) const {
  if (word.empty() || seen_.find(word, ids)) {
    return;
  }
  find_best(word);
  // Its tokens from the last to the first; the way to each end is not needed behind it, so that the next place is kept there.
  uint32_t next = kNowhere;
  for (uint32_t end = static_cast<uint32_t>(word.size());;) {
    const uint32_t begin = best_[end].begin;
    best_[end].begin = next;
    next = end;
    if (end == 0) {
      break;
    }
    end = begin;
  }
  const size_t first = ids.size();
  size_t unknown = 0;  // where a run of unknown characters begins
  for (uint32_t at = 0; best_[at].begin != kNowhere;) {
    const uint32_t end = best_[at].begin;
    const uint32_t id = best_[end].id;
    if (id != unknown_) {
      add_unknown(word.substr(unknown, at - unknown), ids);
      ids.push_back(id);
      unknown = end;
    }
    at = end;
  }
  add_unknown(word.substr(unknown), ids);
  if (SeenWords::keeps(word)) {
    seen_.keep(ids, first);
  } else {
    // A long word's room is given back.
    std::vector<Best>().swap(best_);
  }
}

// Fills best_ for every place where a character begins or the word ends.
void Unigram::find_best(std::string_view word) const {
  best_.assign(word.size() + 1, {0.0, unknown_, kNowhere});
  for (size_t at = 0; at < word.size();) {
    const size_t character = character_bytes(word[at]);
    const auto reach = [&](size_t end, double score, uint32_t id) {
      Best& best = best_[end];
      const double sum = score + best_[at].score;
      if (best.begin == kNowhere || sum > best.score) {
        best = {sum, id, static_cast<uint32_t>(at)};
      }
    };
    bool known = false;
    Pieces::Walk walk = pieces_.next(pieces_.begin(), word[at]);
    for (size_t end = at + 1; !walk.empty(); ++end) {
      if (const auto token = pieces_.token(walk)) {
        reach(end, scores_[*token], *token);
        known = known || end == at + character;
      }
      if (end == word.size()) {
        break;
      }
      walk = pieces_.next(walk, word[end]);
    }
    if (!known) {
      reach(at + character, unknown_score_, unknown_);
    }
    at += character;
  }
}

// Add a run of characters without tokens as one unknown token, or as its bytes. If the whole run is the text of a
// token, add that token, as in tokenizers.
void Unigram::add_unknown(std::string_view text, std::vector<uint32_t>& ids) const {
  if (text.empty()) {
    return;
  }
  if (const auto token = vocabulary().find(text)) {
    ids.push_back(*token);
  } else if (!bytes_.append(text, ids)) {
    ids.push_back(unknown_);
  }
}

}  // namespace zoexport
