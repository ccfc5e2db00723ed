#include "session/data/batching.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "session/memory.h"
#include "session/storage/sizes.h"

namespace zoexport {
namespace {

struct Entry {
  uint32_t owner;
  uint32_t position;
  int32_t token;
};

struct Row {
  const int32_t* tokens;
  uint32_t length;
  std::vector<Entry> entries;
};

// Return the number of tokens that a candidate's labels can see: for a causal model up to the last label, else all.
uint32_t visible_length(const Candidate& candidate, bool causal) {
  uint32_t length = candidate.length;
  while (causal && candidate.labels[length - 1] == kNoLabel) {
    --length;
  }
  return length;
}

// Tokens of a row or of a candidate; borrowed. Ordered as words in a dictionary.
struct Word {
  const int32_t* tokens;
  uint32_t length;

  bool begins(const Word& other) const {
    return length <= other.length && std::equal(tokens, tokens + length, other.tokens);
  }
  bool operator<(const Word& other) const {
    return std::lexicographical_compare(tokens, tokens + length, other.tokens, other.tokens + other.length);
  }
};

// The rows of one example. Candidates are given to the first row that fits them, which is found without a look at each:
// no row begins with another one, so the row that a candidate begins with is the one before it in the order, and those
// that begin with the candidate follow it.
class Rows {
 public:
  explicit Rows(bool causal) : causal_(causal) {}

  void add(const Candidate& candidate, uint32_t owner) {
    const uint32_t length = visible_length(candidate, causal_);
    Row& row = rows_[place({candidate.tokens, length})];
    if (length > row.length) {
      row.tokens = candidate.tokens;
      row.length = length;
    }
    for (uint32_t position = 0; position < length; ++position) {
      if (candidate.labels[position] != kNoLabel) {
        row.entries.push_back({owner, position, candidate.labels[position]});
      }
    }
  }

  std::vector<Row> take() { return std::move(rows_); }

 private:
  // Return the number of the candidate's row; add a row if no row fits.
  size_t place(const Word& word) {
    const auto after = ordered_.upper_bound(word);
    if (after != ordered_.begin()) {
      const auto before = std::prev(after);
      const bool same = before->first.length == word.length;
      if ((causal_ || same) && before->first.begins(word)) {
        const size_t row = before->second;
        if (!same) {
          ordered_.erase(before);
          ordered_.emplace(word, row);
        }
        return row;
      }
    }
    if (causal_ && after != ordered_.end() && word.begins(after->first)) {
      return first_beginning_with(word, after);
    }
    ordered_.emplace(word, rows_.size());
    rows_.push_back({word.tokens, 0, {}});
    return rows_.size() - 1;
  }

  // Return the first of the rows that begin with a word; `next` is one of them. Later rows have larger numbers, so the
  // result stays valid: each row is visited once for each of its beginnings.
  size_t first_beginning_with(const Word& word, std::map<Word, size_t>::const_iterator next) {
    const auto [known, fresh] = beginnings_.emplace(word, 0);
    if (fresh) {
      size_t first = next->second;
      for (; next != ordered_.end() && word.begins(next->first); ++next) {
        first = std::min(first, next->second);
      }
      known->second = first;
    }
    return known->second;
  }

  bool causal_;
  std::vector<Row> rows_;
  std::map<Word, size_t> ordered_;     // none begins with another one
  std::map<Word, size_t> beginnings_;  // of several rows
};

class Packer {
 public:
  Packer(const CallLimits& limits, std::vector<Call>& calls) : limits_(limits), calls_(calls) {}

  // False where the calls take more memory than there is; bytes() is then what they asked for.
  bool place(const Row& row, uint32_t example) {
    const size_t wanted = row.entries.size();
    // A row is split over calls only where no call could hold its entries.
    if (calls_.empty() || used_ == limits_.rows || (wanted > room() && (wanted <= limits_.max_labels || room() == 0))) {
      if (!open()) {
        return false;
      }
    }
    for (size_t done = 0; done < wanted;) {
      if (room() == 0 && !open()) {
        return false;
      }
      const size_t part = std::min(wanted - done, room());
      append(row, example, done, part);
      done += part;
    }
    return true;
  }

  // Ends the call that is open.
  void close() {
    if (calls_.empty()) {
      return;
    }
    Call& call = calls_.back();
    trim(call);
    const size_t filled = std::max<size_t>(call.owners.size(), limits_.min_labels);
    call.label_positions.resize(filled, 0);
    call.label_tokens.resize(filled, 0);
    bytes_ = size_sum(bytes_, (call.tokens.size() + size_t{2} * filled) * sizeof(int64_t));
  }

  uint64_t bytes() const { return bytes_; }

 private:
  size_t room() const { return limits_.max_labels - calls_.back().owners.size(); }

  // Drops the columns that no row reaches.
  void trim(Call& call) const {
    const auto least = std::lower_bound(limits_.lengths.begin(), limits_.lengths.end(), call.length);
    const size_t from = limits_.max_length;
    const size_t to = least != limits_.lengths.end() ? *least : std::max(call.length, limits_.min_length);
    call.length = static_cast<uint32_t>(to);
    if (from == to) {
      return;
    }
    for (size_t row = 1; row < limits_.rows; ++row) {
      const auto begin = call.tokens.begin();
      std::copy_n(begin + static_cast<std::ptrdiff_t>(row * from), to, begin + static_cast<std::ptrdiff_t>(row * to));
    }
    call.tokens.resize(limits_.rows * to);
    call.tokens.shrink_to_fit();
    for (int64_t& position : call.label_positions) {
      const auto [row, column] = std::div(position, static_cast<int64_t>(from));
      position = row * static_cast<int64_t>(to) + column;
    }
  }

  bool open() {
    close();
    const uint64_t labels = size_product(limits_.min_labels, 2);
    const uint64_t values = size_sum(size_product(limits_.rows, limits_.max_length), labels);
    const uint64_t asked = size_sum(bytes_, size_product(values, sizeof(int64_t)));
    if (asked > machine_memory()) {
      bytes_ = asked;
      return false;
    }
    calls_.emplace_back();
    calls_.back().tokens.assign(size_t{limits_.rows} * limits_.max_length, limits_.pad_token.value_or(0));
    used_ = 0;
    return true;
  }

  void append(const Row& row, uint32_t example, size_t first, size_t count) {
    Call& call = calls_.back();
    const size_t begin = size_t{used_} * limits_.max_length;
    std::copy_n(row.tokens, row.length, call.tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    call.length = std::max(call.length, row.length);
    for (size_t i = first; i < first + count; ++i) {
      call.label_positions.push_back(static_cast<int64_t>(begin + row.entries[i].position));
      call.label_tokens.push_back(row.entries[i].token);
      call.owners.push_back(row.entries[i].owner);
    }
    call.examples.push_back(example);
    ++used_;
  }

  const CallLimits& limits_;
  std::vector<Call>& calls_;
  uint32_t used_ = 0;
  uint64_t bytes_ = 0;  // of the calls that are closed
};

}  // namespace

Result<Layout> lay_out(const Dataset& dataset, const uint64_t* indices, size_t count, bool all_candidates,
                       const CallLimits& limits) {
  Layout layout;
  struct Placed {
    Row row;
    uint32_t example;
  };
  std::vector<Placed> placed;
  for (size_t i = 0; i < count; ++i) {
    const size_t example = indices[i];
    const size_t target = dataset.target(example);
    const size_t begin = all_candidates ? 0 : target;
    const size_t end = all_candidates ? dataset.candidates(example) : target + 1;
    layout.examples.push_back({static_cast<uint32_t>(layout.labels.size()), static_cast<uint32_t>(end - begin),
                               static_cast<uint32_t>(target - begin)});
    Rows rows(!limits.pad_token);
    for (size_t c = begin; c < end; ++c) {
      const Candidate candidate = dataset.candidate(example, c);
      const auto labels = candidate.length - std::count(candidate.labels, candidate.labels + candidate.length,
                                                        static_cast<int32_t>(kNoLabel));
      rows.add(candidate, static_cast<uint32_t>(layout.labels.size()));
      layout.labels.push_back(static_cast<uint32_t>(labels));
    }
    for (Row& row : rows.take()) {
      placed.push_back({std::move(row), static_cast<uint32_t>(i)});
    }
  }
  if (placed.size() > limits.rows) {
    // A call is as long as its longest row.
    std::stable_sort(placed.begin(), placed.end(),
                     [](const Placed& a, const Placed& b) { return a.row.length > b.row.length; });
  }
  Packer packer(limits, layout.calls);
  for (const Placed& one : placed) {
    if (!packer.place(one.row, one.example)) {
      return Failure{ZO_INVALID_ARGUMENT, "a batch of " + std::to_string(count) + " examples",
                     "rows that take " + bytes_text(packer.bytes()),
                     "at most the " + bytes_text(machine_memory()) + " of this machine's memory",
                     "Use a smaller batch, or compile the bundle with a smaller batch or max_length."};
    }
  }
  packer.close();
  return layout;
}

}  // namespace zoexport
