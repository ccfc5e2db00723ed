// The stages below the first that reads any slot: what they give depends on tokens alone, so that it is the same for all
// perturbed copies, and in all epochs.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "session/manifest/manifest.h"
#include "session/storage/shared_file.h"

namespace zoexport {

class Stages;
struct StageValues;

class FrozenPrefix {
 public:
  // `stages` outlives this object.
  explicit FrozenPrefix(Stages& stages);

  // Return the first stage after the prefix; 0 if the prefix is not useful.
  size_t end() const { return end_; }
  // Bytes of a file in which what rows became is kept, first come first served; 0 keeps none. Rows that are kept already
  // are, unless there are more bytes or fewer.
  void keep(uint64_t bytes);
  // Fill `to` with the input of stage end(). `values` has tokens and scalars; stages work in the regions `turn`, and
  // `to` may be the region end() % 2.
  Status run(Pass pass, uint32_t length, StageValues values, const std::array<uint8_t*, 2>& turn, uint8_t* to);

 private:
  using Key = std::array<uint8_t, 32>;
  // Offset and length of a part of a row in a region.
  struct Part {
    size_t offset, bytes;
  };
  std::vector<Part> parts(uint32_t length, size_t row) const;
  std::vector<Key> keys(uint32_t length, const int64_t* tokens) const;
  bool find(uint32_t length, const std::vector<Key>& rows, uint8_t* to) const;
  Status store(uint32_t length, const std::vector<Key>& rows, const uint8_t* from);

  Stages& stages_;
  size_t end_ = 0;
  uint64_t limit_ = 0;
  uint64_t used_ = 0;
  std::optional<SharedFile> file_;  // made when the first row is kept
  std::map<Key, uint64_t> offsets_;
};

}  // namespace zoexport
