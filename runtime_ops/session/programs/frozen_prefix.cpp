#include "session/programs/frozen_prefix.h"

#include <cstring>

#include "session/programs/stages.h"
#include "session/storage/sha256.h"

namespace zoexport {

FrozenPrefix::FrozenPrefix(Stages& stages) : stages_(stages) {
  const Manifest& manifest = stages.manifest();
  if (manifest.whole()) {
    return;
  }
  const auto reads_slots = [&](size_t stage) {
    return manifest.program(manifest.stages[stage].forward, manifest.max_length)->input("state") != nullptr;
  };
  while (end_ < stages.head() && !reads_slots(end_)) {
    ++end_;
  }
  // Rows of a table are as fast looked up as read from a file; and what the head takes is no activation of a call.
  if (end_ < 2 || end_ == stages.head()) {
    end_ = 0;
  }
}

void FrozenPrefix::keep(uint64_t bytes) {
  if (bytes != limit_) {
    limit_ = bytes;
    used_ = 0;
    file_.reset();
    offsets_.clear();
  }
}

std::vector<FrozenPrefix::Part> FrozenPrefix::parts(uint32_t length, size_t row) const {
  const Manifest& manifest = stages_.manifest();
  std::vector<Part> found;
  size_t begin = 0;
  for (const ValueSpec& value : manifest.program(manifest.stages[end_].forward, length)->inputs) {
    if (value.role == "activation") {
      const size_t bytes = make_tensor(value, sizes_of(value), nullptr).bytes;
      const size_t of_row = bytes / manifest.rows;
      found.push_back({begin + row * of_row, of_row});
      begin += Scratch::padded(bytes);
    }
  }
  return found;
}

std::vector<FrozenPrefix::Key> FrozenPrefix::keys(uint32_t length, const int64_t* tokens) const {
  std::vector<Key> found;
  for (uint32_t row = 0; row < stages_.manifest().rows; ++row) {
    Sha256 hash;
    hash.update(tokens + size_t{row} * length, length * sizeof(int64_t));
    found.push_back(hash.finish());
  }
  return found;
}

bool FrozenPrefix::find(uint32_t length, const std::vector<Key>& rows, uint8_t* to) const {
  for (const Key& key : rows) {
    if (offsets_.count(key) == 0) {
      return false;
    }
  }
  for (size_t row = 0; row < rows.size(); ++row) {
    const uint8_t* from = file_->data() + offsets_.at(rows[row]);
    for (const Part& part : parts(length, row)) {
      std::memcpy(to + part.offset, from, part.bytes);
      from += part.bytes;
    }
  }
  return true;
}

Status FrozenPrefix::store(uint32_t length, const std::vector<Key>& rows, const uint8_t* from) {
  for (size_t row = 0; row < rows.size(); ++row) {
    size_t bytes = 0;
    const std::vector<Part> all = parts(length, row);
    for (const Part& part : all) {
      bytes += part.bytes;
    }
    if (offsets_.count(rows[row]) != 0 || bytes > limit_ - used_) {
      continue;
    }
    if (!file_) {
      const std::string& folder = stages_.folder();
      ZO_ASSIGN(file, SharedFile::unnamed(folder.empty() ? temporary_folder() : folder, limit_));
      file_.emplace(std::move(file));
    }
    uint8_t* to = file_->data() + used_;
    for (const Part& part : all) {
      std::memcpy(to, from + part.offset, part.bytes);
      to += part.bytes;
    }
    offsets_[rows[row]] = used_;
    used_ += bytes;
  }
  return {};
}

Status FrozenPrefix::run(Pass pass, uint32_t length, StageValues values, const std::array<uint8_t*, 2>& turn,
                         uint8_t* to) {
  std::vector<Key> rows;
  if (limit_ > 0) {
    rows = keys(length, values.tokens);
    if (find(length, rows, to)) {
      return {};
    }
  }
  for (size_t stage = 0; stage < end_; ++stage) {
    values.activations = turn[stage % 2];
    values.next_activations = stage + 1 == end_ ? to : turn[(stage + 1) % 2];
    ZO_TRY(stages_.run(stage, pass, length, values));
  }
  return limit_ > 0 ? store(length, rows, to) : Status();
}

}  // namespace zoexport
