#include "session/programs/frozen_weights.h"

#include "session/storage/files.h"

namespace zoexport {

Status FrozenWeights::open(const std::vector<Read>& reads) {
  const std::string path = join(files_.path(), manifest_.weights);
  if (!file_) {
    ZO_ASSIGN(opened, files_.open(manifest_.weights));
    ZO_ASSIGN(file, SafeTensors::of(opened));
    file_.emplace(std::move(file));
  }
  for (const Read& read : reads) {
    const TensorBytes* tensor = file_->find(read.name);
    const bool fits = tensor != nullptr && tensor->dtype == safetensors_dtype(read.value->dtype) &&
                      read.value->has_shape(tensor->shape) &&
                      reinterpret_cast<uintptr_t>(tensor->data) % dtype_bytes(read.value->dtype) == 0;
    if (!fits) {
      return Failure{ZO_BUNDLE_ERROR, path,
                     (tensor == nullptr ? "no tensor " : "another dtype, shape or alignment of ") + read.name,
                     "what " + read.reader + " reads", "Compile the bundle again."};
    }
  }
  return {};
}

}  // namespace zoexport
