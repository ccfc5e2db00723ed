// The file of frozen tensors that programs take as inputs: mapped, and checked against what programs read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "session/manifest/bundle_files.h"
#include "session/manifest/manifest.h"
#include "session/storage/safetensors.h"

namespace zoexport {

class FrozenWeights {
 public:
  // An input of a program, the tensor that it stands for, and whose input it is (for messages).
  struct Read {
    const ValueSpec* value;
    std::string name;
    std::string reader;
  };

  // Manifest and files outlive this object.
  FrozenWeights(const Manifest& manifest, const BundleFiles& files) : manifest_(manifest), files_(files) {}

  // Open the file if it is not open, and check that it has every tensor of `reads` as its value states it.
  Status open(const std::vector<Read>& reads);
  // Check a tensor over positions, given `value` with some of its rows: same dtype and shape, but at least `rows` in
  // the first size that is not 1. The file is open.
  Status check_table(const Read& read, uint32_t rows) const;
  // Return the data of a checked tensor.
  const uint8_t* data(const std::string& name) const { return file_->find(name)->data; }
  int64_t size(const std::string& name, size_t axis) const { return file_->find(name)->shape[axis]; }

 private:
  const Manifest& manifest_;
  const BundleFiles& files_;
  std::optional<SafeTensors> file_;
};

}  // namespace zoexport
