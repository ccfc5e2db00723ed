#include "session/data/batching.h"

#include <algorithm>
#include <cstdlib>

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

// What labels of a candidate can see: of a causal model everything up to the last of them, else the whole.
uint32_t visible_length(const Candidate& candidate, bool causal) {
  uint32_t length = candidate.length;
  while (causal && candidate.labels[length - 1] == kNoLabel) {
    --length;
  }
  return length;
}

void add_candidate(std::vector<Row>& rows, const Candidate& candidate, uint32_t owner, bool causal) {
  const uint32_t length = visible_length(candidate, causal);
  Row* row = nullptr;
  for (Row& other : rows) {
    if ((causal || length == other.length) &&
        std::equal(candidate.tokens, candidate.tokens + std::min(length, other.length), other.tokens)) {
      row = &other;
      break;
    }
  }
  if (row == nullptr) {
    rows.push_back({candidate.tokens, 0, {}});
    row = &rows.back();
  }
  if (length > row->length) {
    row->tokens = candidate.tokens;
    row->length = length;
  }
  for (uint32_t position = 0; position < length; ++position) {
    if (candidate.labels[position] != kNoLabel) {
      row->entries.push_back({owner, position, candidate.labels[position]});
    }
  }
}

class Packer {
 public:
  Packer(const CallLimits& limits, std::vector<Call>& calls) : limits_(limits), calls_(calls) {}

  void place(const Row& row) {
    const size_t wanted = row.entries.size();
    // A row is split over calls only where no call could hold its entries.
    if (calls_.empty() || used_ == limits_.rows || (wanted > room() && (wanted <= limits_.max_labels || room() == 0))) {
      open();
    }
    for (size_t done = 0; done < wanted;) {
      if (room() == 0) {
        open();
      }
      const size_t part = std::min(wanted - done, room());
      append(row, done, part);
      done += part;
    }
  }

  void finish() {
    for (Call& call : calls_) {
      trim(call);
      const size_t filled = std::max<size_t>(call.owners.size(), limits_.min_labels);
      call.label_positions.resize(filled, 0);
      call.label_tokens.resize(filled, 0);
    }
  }

 private:
  size_t room() const { return limits_.max_labels - calls_.back().owners.size(); }

  // Drops the columns that no row reaches.
  void trim(Call& call) const {
    const auto least = std::lower_bound(limits_.lengths.begin(), limits_.lengths.end(), call.length);
    const size_t from = limits_.seq_len;
    const size_t to = least != limits_.lengths.end() ? *least : std::max(call.length, limits_.min_seq_len);
    call.length = static_cast<uint32_t>(to);
    if (from == to) {
      return;
    }
    for (size_t row = 1; row < limits_.rows; ++row) {
      const auto begin = call.tokens.begin();
      std::copy_n(begin + static_cast<std::ptrdiff_t>(row * from), to, begin + static_cast<std::ptrdiff_t>(row * to));
    }
    call.tokens.resize(limits_.rows * to);
    for (int64_t& position : call.label_positions) {
      const auto [row, column] = std::div(position, static_cast<int64_t>(from));
      position = row * static_cast<int64_t>(to) + column;
    }
  }

  void open() {
    calls_.emplace_back();
    calls_.back().tokens.assign(size_t{limits_.rows} * limits_.seq_len, limits_.pad_token.value_or(0));
    used_ = 0;
  }

  void append(const Row& row, size_t first, size_t count) {
    Call& call = calls_.back();
    const size_t begin = size_t{used_} * limits_.seq_len;
    std::copy_n(row.tokens, row.length, call.tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    call.length = std::max(call.length, row.length);
    for (size_t i = first; i < first + count; ++i) {
      call.label_positions.push_back(static_cast<int64_t>(begin + row.entries[i].position));
      call.label_tokens.push_back(row.entries[i].token);
      call.owners.push_back(row.entries[i].owner);
    }
    ++used_;
  }

  const CallLimits& limits_;
  std::vector<Call>& calls_;
  uint32_t used_ = 0;
};

}  // namespace

Layout lay_out(const Dataset& dataset, const uint64_t* indices, size_t count, bool all_candidates,
               const CallLimits& limits) {
  Layout layout;
  Packer packer(limits, layout.calls);
  std::vector<Row> rows;
  for (size_t i = 0; i < count; ++i) {
    const size_t example = indices[i];
    const size_t target = dataset.target(example);
    const size_t begin = all_candidates ? 0 : target;
    const size_t end = all_candidates ? dataset.candidates(example) : target + 1;
    layout.examples.push_back({static_cast<uint32_t>(layout.labels.size()), static_cast<uint32_t>(end - begin),
                               static_cast<uint32_t>(target - begin)});
    rows.clear();
    for (size_t c = begin; c < end; ++c) {
      const Candidate candidate = dataset.candidate(example, c);
      const auto labels = candidate.length - std::count(candidate.labels, candidate.labels + candidate.length,
                                                        static_cast<int32_t>(kNoLabel));
      add_candidate(rows, candidate, static_cast<uint32_t>(layout.labels.size()), !limits.pad_token);
      layout.labels.push_back(static_cast<uint32_t>(labels));
    }
    for (const Row& row : rows) {
      packer.place(row);
    }
  }
  packer.finish();
  return layout;
}

}  // namespace zoexport
