#include "session/adapters/adapter.h"

#include <algorithm>
#include <cmath>

#include "session/storage/sizes.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 30;

}  // namespace

Status check_layers(const std::vector<AdapterLayer>& layers) {
  if (layers.empty()) {
    return Failure{ZO_INVALID_ARGUMENT, "adapter", "no layers", "at least one", "Pass the adapter's layers."};
  }
  for (const AdapterLayer& layer : layers) {
    const uint64_t most = size_product(std::max(layer.inputs, layer.outputs), layer.rank);
    if (std::min(layer.inputs, layer.outputs) == 0 || most == 0 || most > kMostElements) {
      return Failure{ZO_INVALID_ARGUMENT, "adapted layer " + layer.module,
                     std::to_string(layer.outputs) + " outputs of " + std::to_string(layer.inputs) +
                         " inputs, with rank " + std::to_string(layer.rank),
                     "sizes from 1 on, and matrices of at most " + std::to_string(kMostElements) + " elements",
                     "Pass the sizes of its two matrices."};
    }
  }
  return {};
}

Status sort_by_name(std::vector<AdapterTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const AdapterTensor& a, const AdapterTensor& b) { return a.name < b.name; });
  const auto same = std::adjacent_find(tensors.begin(), tensors.end(),
                                       [](const AdapterTensor& a, const AdapterTensor& b) { return a.name == b.name; });
  if (same != tensors.end()) {
    return Failure{ZO_INVALID_ARGUMENT, "adapter", "two tensors " + same->name, "one", "Pass each layer once."};
  }
  for (const AdapterTensor& tensor : tensors) {
    if (valid_utf8(tensor.name) != tensor.name.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "adapter", "a layer's name that is no UTF-8", "names in UTF-8",
                     "Pass the names of the model's layers."};
    }
  }
  return {};
}

Result<const std::vector<float>*> TensorReader::read(const AdapterTensor& tensor) {
  matrix_.resize(tensor.elements());
  values_.resize(tensor.elements());
  (*tensor.matrix)(matrix_.data());
  for (uint64_t i = 0; i < tensor.rows; ++i) {
    const uint64_t row = tensor.order.empty() ? i : tensor.order[i];
    for (uint64_t j = 0; j < tensor.columns; ++j) {
      values_[i * tensor.columns + j] = matrix_[j * tensor.rows + row];
    }
  }
  if (!std::all_of(values_.begin(), values_.end(), [](float value) { return std::isfinite(value); })) {
    return Failure{ZO_INVALID_ARGUMENT, "adapter, " + tensor.name, "values that are not finite", "finite numbers",
                   "Export a run that did not diverge."};
  }
  return static_cast<const std::vector<float>*>(&values_);
}

}  // namespace zoexport
