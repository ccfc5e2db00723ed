// The file of frozen tensors that programs take as inputs: mapped, and checked against what programs read.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

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

  // `verify` checks a file of the bundle before it is used. The manifest outlives this object.
  FrozenWeights(const Manifest& manifest, std::string bundle, std::function<Status(const std::string& file)> verify)
      : manifest_(manifest), bundle_(std::move(bundle)), verify_(std::move(verify)) {}

  // Opens the file where it is not open yet, and checks that it has every tensor of `reads` as its value states it.
  Status open(const std::vector<Read>& reads);
  // Of a tensor that was checked.
  const uint8_t* data(const std::string& name) const { return file_->find(name)->data; }

 private:
  const Manifest& manifest_;
  std::string bundle_;
  std::function<Status(const std::string& file)> verify_;
  std::optional<SafeTensors> file_;
};

}  // namespace zoexport
