#include "session/manifest/roles.h"

namespace zoexport {

Values with_role(const std::vector<ValueSpec>& values, const std::string& role) {
  Values found;
  for (const ValueSpec& value : values) {
    if (value.role == role) {
      found.push_back(&value);
    }
  }
  return found;
}

int32_t scalar_dtype(const std::string& role) {
  if (role == "seed" || role == "step" || role == "query") {
    return ZO_INT64;
  }
  return role == "sign" || role == "learning_rate" || role == "epsilon" ? ZO_FLOAT32 : -1;
}

bool is_noise(const ValueSpec& value) { return value.role == "noise" || value.role == "previous_noise"; }

std::string noise_slot(const ValueSpec& value) { return value.name.substr(value.role.size() + 1); }

bool is_dropout(const ValueSpec& value) { return value.role == "dropout"; }

std::string dropout_slot(const ValueSpec& value) {
  return value.name.size() > value.role.size() ? value.name.substr(value.role.size() + 1) : "";
}

bool fits_noise(const Manifest& manifest, const ValueSpec& value) {
  if (value.name.compare(0, value.role.size() + 1, value.role + ".") != 0 || value.shape.empty()) {
    return false;
  }
  const bool all = value.shape[0].max == int64_t{manifest.queries()};
  for (const SlotSpec& slot : manifest.slots) {
    if (slot.name == noise_slot(value) && !slot.integers()) {
      std::vector<int64_t> shape = slot.shape;
      shape.insert(shape.begin(), value.shape[0].max);
      return value.dtype == ZO_FLOAT32 && value.has_shape(shape) && (all || (value.role == "noise" && shape[0] == 1));
    }
  }
  return false;
}

}  // namespace zoexport
