#include "session/examples/packing.h"

#include <algorithm>

namespace zoexport {

Status RowPacker::add(const std::vector<int64_t>& tokens, const std::vector<int64_t>& labels, bool divides,
                      const std::string& where) {
  const bool separated = !spec_.end_tokens.empty() && !tokens_.empty() && !spec_.ends(tokens_.back()) &&
                         !tokenizer_.special(tokens.front());
  const size_t least = (separated ? 1 : 0) + (divides ? 1 : tokens.size());
  if (tokens_.size() + least > max_length_) {
    ZO_TRY(finish());
  } else if (separated) {
    tokens_.push_back(spec_.eos_token.value_or(spec_.end_tokens.front()));
    labels_.push_back(kNoLabel);
  }
  const auto is_label = [](int64_t label) { return label != kNoLabel; };
  // A last token at which nothing is predicted makes no row of its own.
  for (size_t begin = 0; std::any_of(labels.begin() + static_cast<ptrdiff_t>(begin), labels.end(), is_label);) {
    if (tokens_.size() == max_length_) {
      ZO_TRY(finish());
    }
    if (tokens_.empty()) {
      where_ = where;
    }
    const size_t end = std::min(tokens.size(), begin + max_length_ - tokens_.size());
    const auto first = static_cast<ptrdiff_t>(begin), last = static_cast<ptrdiff_t>(end);
    tokens_.insert(tokens_.end(), tokens.begin() + first, tokens.begin() + last);
    labels_.insert(labels_.end(), labels.begin() + first, labels.begin() + last);
    begin = end;
  }
  return {};
}

Status RowPacker::finish() {
  if (tokens_.empty()) {
    return {};
  }
  const zo_candidate row = {tokens_.data(), labels_.data(), tokens_.size()};
  ZO_TRY(dataset_.add(&row, 1, /*target=*/0, where_));
  tokens_.clear();
  labels_.clear();
  return {};
}

}  // namespace zoexport
