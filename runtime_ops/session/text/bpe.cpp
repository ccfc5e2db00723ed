#include "session/text/bpe.h"

#include <algorithm>

#include "session/text/utf8.h"

namespace zoexport {
Merges::Merges(std::vector<Merge> merges) : merges_(std::move(merges)) {
  size_t size = 16;
  while (size < merges_.size() * 3 / 2) {
    size *= 2;
  }
  slots_.assign(size, kNone);
  for (uint32_t rank = 0; rank < merges_.size(); ++rank) {
    slots_[slot(merges_[rank].left, merges_[rank].right)] = rank;
  }
}

uint32_t Merges::rank(uint32_t left, uint32_t right) const { return slots_[slot(left, right)]; }

size_t Merges::slot(uint32_t left, uint32_t right) const {
  const size_t mask = slots_.size() - 1;
  const uint64_t key = (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15u;
  size_t index = (key >> 32) & mask;
  while (slots_[index] != kNone && (merges_[slots_[index]].left != left || merges_[slots_[index]].right != right)) {
    index = (index + 1) & mask;
  }
  return index;
}

Bpe::Bpe(Vocabulary vocabulary, Merges merges, Options options)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(std::move(options)) {
  if (options_.byte_fallback) {
    bytes_ = ByteTokens(vocabulary_);
  }
}

void Bpe::encode(std::string_view word, std::vector<uint32_t>& ids) const {
  if (word.empty()) {
    return;
  }
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_.find(word)) {
      ids.push_back(*id);
      return;
    }
  }
  if (seen_.find(word, ids)) {
    return;
  }
  split(word);
  merge();
  const size_t begin = ids.size();
  for (const Symbol& symbol : symbols_) {
    if (!symbol.merged) {
      ids.push_back(symbol.id);
    }
  }
  if (SeenWords::keeps(word)) {
    seen_.keep(ids, begin);
  } else {
    // A long word's room is given back.
    std::vector<Symbol>().swap(symbols_);
    std::vector<Candidate>().swap(heap_);
  }
}

// Into characters.
void Bpe::split(std::string_view word) const {
  symbols_.clear();
  const auto add = [&](uint32_t id) {
    const auto here = static_cast<uint32_t>(symbols_.size());
    symbols_.push_back({id, here == 0 ? kEnd : here - 1, here + 1, false});
  };
  bool unknown = false;  // one is to come
  std::string affixed;
  for (size_t at = 0; at < word.size();) {
    const size_t size = character_bytes(word[at]);
    std::string_view character = word.substr(at, size);
    const bool first = at == 0;
    at += size;
    const bool last = at == word.size();
    if ((!first && !options_.prefix.empty()) || (last && !options_.suffix.empty())) {
      affixed = first ? "" : options_.prefix;
      affixed.append(character);
      affixed.append(last ? options_.suffix : "");
      character = affixed;
    }
    if (const auto id = vocabulary_.find(character)) {
      if (unknown) {
        add(*options_.unknown);
        unknown = false;
      }
      add(*id);
      continue;
    }
    fallback_.clear();
    if (bytes_.append(character, fallback_)) {
      std::for_each(fallback_.begin(), fallback_.end(), add);
      continue;
    }
    if (options_.unknown) {
      if (unknown && !options_.fuse_unknown) {
        add(*options_.unknown);
      }
      unknown = true;
    }
  }
  if (unknown) {
    add(*options_.unknown);
  }
  if (!symbols_.empty()) {
    symbols_.back().after = kEnd;
  }
}

// Puts the pair that begins at a position among the candidates, if it has a merge.
void Bpe::consider(uint32_t position) const {
  const uint32_t after = position == kEnd ? kEnd : symbols_[position].after;
  if (after == kEnd) {
    return;
  }
  const uint32_t rank = merges_.rank(symbols_[position].id, symbols_[after].id);
  if (rank != Merges::kNone) {
    heap_.push_back({rank, position});
    std::push_heap(heap_.begin(), heap_.end());
  }
}

void Bpe::merge() const {
  heap_.clear();
  for (uint32_t i = 0; i < symbols_.size(); ++i) {
    consider(i);
  }
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[best.position];
    if (left.merged || left.after == kEnd) {
      continue;
    }
    // The pair must still make the token that it was queued for; the merge may be another one, as in tokenizers.
    const uint32_t made = merges_.made(best.rank);
    const uint32_t rank = merges_.rank(left.id, symbols_[left.after].id);
    if (rank == Merges::kNone || merges_.made(rank) != made) {
      continue;
    }
    Symbol& right = symbols_[left.after];
    right.merged = true;
    left.id = made;
    left.after = right.after;
    if (left.after != kEnd) {
      symbols_[left.after].before = best.position;
    }
    consider(left.before);
    consider(best.position);
  }
}

}  // namespace zoexport
