#include "session/programs/frozen_weights.h"

#include "session/storage/files.h"

namespace zoexport {
namespace {

Failure unfit(const std::string& path, const TensorBytes* tensor, const FrozenWeights::Read& read) {
  return {ZO_BUNDLE_ERROR, path,
          (tensor == nullptr ? "no tensor " : "another dtype, shape or alignment of ") + read.name,
          "what " + read.reader + " reads", "Compile the bundle again."};
}

bool fits_dtype(const TensorBytes& tensor, const ValueSpec& value) {
  return tensor.dtype == safetensors_dtype(value.dtype) &&
         reinterpret_cast<uintptr_t>(tensor.data) % dtype_bytes(value.dtype) == 0;
}

}  // namespace

Status FrozenWeights::open(const std::vector<Read>& reads) {
  const std::string path = join(files_.path(), manifest_.weights);
  if (!file_) {
    ZO_ASSIGN(opened, files_.open(manifest_.weights));
    ZO_ASSIGN(file, SafeTensors::of(opened, MappedFile::Writes::kPrivateCopy));
    file_.emplace(std::move(file));
  }
  for (const Read& read : reads) {
    const TensorBytes* tensor = file_->find(read.name);
    if (tensor == nullptr || !fits_dtype(*tensor, *read.value) || !read.value->has_shape(tensor->shape)) {
      return unfit(path, tensor, read);
    }
  }
  return {};
}

Status FrozenWeights::check_table(const Read& read, uint32_t rows) const {
  const TensorBytes* tensor = file_->find(read.name);
  bool fits = tensor != nullptr && fits_dtype(*tensor, *read.value) && tensor->shape.size() == read.value->shape.size();
  bool found = false;
  for (size_t i = 0; fits && i < tensor->shape.size(); ++i) {
    // For one token, or a table of one column, several sizes are 1: the tensor's shape shows the axis of positions.
    const bool positions = !found && tensor->shape[i] != 1;
    found = found || positions;
    fits = positions ? tensor->shape[i] >= int64_t{rows} : tensor->shape[i] == read.value->shape[i].max;
  }
  return fits && (found || rows == 1) ? Status() : Status(unfit(join(files_.path(), manifest_.weights), tensor, read));
}

}  // namespace zoexport
