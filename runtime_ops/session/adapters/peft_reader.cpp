#include "session/adapters/peft_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/half.h"
#include "session/decimal.h"
#include "session/storage/files.h"
#include "session/storage/json_reader.h"
#include "session/storage/safetensors.h"

namespace zoexport {
namespace {

using nlohmann::json;

const std::string kPrefix = "base_model.model.";
const std::string kHalfA = "lora_A.";
const char* const kOther = "Use an adapter for the same base model and rank.";
const char* const kLayers =
    "Compile the model with the adapter's layers (--set lora.target_modules=..., lora.layers_to_transform=...).";
constexpr double kNear = 1e-6;  // numbers that were once float32
constexpr size_t kLongestName = 200;

// Settings under which the two matrices are not the whole adapter, or mean something else.
constexpr std::array kUnsupported = {"use_dora",          "use_qalora",
                                     "lora_bias",         "modules_to_save",
                                     "layer_replication", "trainable_token_indices",
                                     "target_parameters", "alora_invocation_tokens",
                                     "use_bdlora",        "arrow_config",
                                     "kasa_config",       "monteclora_config",
                                     "velora_config"};
// Initializations that leave the base model as it is; the others move a part of it into the adapter.
constexpr std::array kPlainInitializations = {"gaussian", "eva", "orthogonal"};

Failure refused(const std::string& where, const std::string& found, const std::string& expected,
                const std::string& fix) {
  return {ZO_STATE_ERROR, where, found, expected, fix};
}

std::string shown(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, kLongestName);
}

// Return whether Python treats the value as true.
bool says_something(const json& value) {
  return !(value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
           (value.is_number() && value.get<double>() == 0) ||
           ((value.is_structured() || value.is_string()) &&
            (value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty())));
}

bool plain_initialization(const json& value) {
  return value.is_null() || value.is_boolean() ||
         (value.is_number() && (value.get<double>() == 0 || value.get<double>() == 1)) ||
         std::any_of(kPlainInitializations.begin(), kPlainInitializations.end(),
                     [&](const char* name) { return value == name; });
}

Result<json> read_config(const std::string& text, const std::string& where) {
  const std::string fix = "Use the file that PEFT wrote.";
  ZO_ASSIGN(content, parse_json(text.data(), text.data() + text.size(), ZO_STATE_ERROR, where, fix));
  if (!content.is_object()) {
    return refused(where, "JSON that is no object", "an object", fix);
  }
  return content;
}

Status check_number(double found, double expected, const std::string& where, const std::string& fix) {
  if (std::fabs(found - expected) <= kNear * std::max(std::fabs(found), std::fabs(expected))) {
    return {};
  }
  return refused(where, decimal(found), decimal(expected) + ", as the bundle was compiled", fix);
}

// Check that each layer has the bundle's rank and scale, regardless of how the scale is made up.
Status check_scaling(const PeftScaling& found, const PeftScaling& own, const std::vector<SlotSpec>& wanted,
                     const std::string& where) {
  for (const SlotSpec& slot : wanted) {
    if (slot.name.compare(0, kHalfA.size(), kHalfA) != 0) {
      continue;
    }
    const std::string module = slot.name.substr(kHalfA.size());
    ZO_ASSIGN(rank, found.rank_of(module));
    ZO_ASSIGN(scale, found.scale_of(module));
    ZO_ASSIGN(own_scale, own.scale_of(module));
    const auto own_rank = static_cast<double>(slot.shape[1]);
    const bool plain = found.uniform() && own.uniform();
    const std::string of_rank = plain ? ", 'r'" : ", the rank of " + module;
    ZO_TRY(check_number(rank, own_rank, where + of_rank,
                        plain ? "Compile the model with --set lora.r=" + decimal(rank) + "."
                              : "Compile the model with the adapter's lora.r and lora.rank_pattern."));
    if (plain && found.rslora() == own.rslora()) {
      ZO_TRY(check_number(found.alpha(), own.alpha(), where + ", 'lora_alpha'",
                          "Compile the model with --set lora.alpha=" + decimal(found.alpha()) + "."));
    }
    const std::string of_scale = ", the scale of " + module;
    ZO_TRY(check_number(scale, own_scale, where + of_scale,
                        "Compile the model with the adapter's lora.alpha, lora.alpha_pattern and lora.use_rslora."));
  }
  return {};
}

Status check_config(const json& content, const PeftScaling& given, const PeftScaling& own,
                    const std::vector<SlotSpec>& wanted, const std::string& where) {
  ZO_TRY(check_scaling(given, own, wanted, where));
  std::string unsupported;
  const auto add = [&](const char* key) {
    unsupported += (unsupported.empty() ? "" : ", ") + std::string(key) + "=" + shown(content.value(key, json()));
  };
  for (const char* key : kUnsupported) {
    if (says_something(content.value(key, json()))) {
      add(key);
    }
  }
  if (content.value("bias", json("none")) != "none") {
    add("bias");
  }
  if (!plain_initialization(content.value("init_lora_weights", json(true)))) {
    add("init_lora_weights");
  }
  return unsupported.empty() ? Status()
                             : refused(where, unsupported, "LoRA of two matrices a layer and a scale",
                                       "Train the adapter without these options.");
}

// lora_A.<module> for PEFT's name of it, also with an adapter's name in it; others unchanged.
std::string slot_name(const std::string& name) {
  const size_t begin = name.compare(0, kPrefix.size(), kPrefix) == 0 ? kPrefix.size() : 0;
  const size_t dot = name.find(".lora_", begin);
  if (dot == std::string::npos) {
    return name;
  }
  const std::string rest = name.substr(dot + std::strlen(".lora_"));
  const bool plain =
      rest == "A.weight" || rest == "B.weight" || rest == "A.default.weight" || rest == "B.default.weight";
  return plain ? std::string("lora_") + rest[0] + "." + name.substr(begin, dot - begin) : name;
}

std::string key_of(const std::string& slot) {
  const size_t dot = slot.find('.');
  return dot == std::string::npos ? slot : peft_key(slot.substr(0, dot), slot.substr(dot + 1));
}

// Bytes of one number of a tensor's dtype; 0 of another than PEFT saves.
size_t number_bytes(const std::string& dtype) {
  return dtype == "F32" ? 4 : dtype == "F64" ? 8 : dtype == "F16" || dtype == "BF16" ? 2 : 0;
}

// A number of a tensor, which may begin at any byte.
float number_at(const TensorBytes& tensor, size_t index) {
  if (tensor.dtype == "F64") {
    double value;
    std::memcpy(&value, tensor.data + index * sizeof(value), sizeof(value));
    return static_cast<float>(value);
  }
  if (tensor.dtype == "F32") {
    float value;
    std::memcpy(&value, tensor.data + index * sizeof(value), sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, tensor.data + index * sizeof(half), sizeof(half));
  if (tensor.dtype == "F16") {
    return kernels::half_to_float(half);
  }
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) {
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  }
  return "(" + text + ")";
}

// The slot's values, which the file has transposed.
void turned(const TensorBytes& tensor, const SlotSpec& spec, std::vector<float>& values) {
  const auto rows = static_cast<size_t>(spec.shape[0]);
  const auto columns = static_cast<size_t>(spec.shape[1]);
  values.resize(spec.elements);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      values[i * columns + j] = number_at(tensor, j * rows + i);
    }
  }
}

using Tensors = std::map<std::string, std::pair<std::string, const TensorBytes*>>;  // by slot: its name in the file

Result<Tensors> named(const SafeTensors& file, const std::vector<SlotSpec>& wanted, const std::string& path) {
  Tensors found;
  for (const auto& [name, tensor] : file.tensors()) {
    if (!found.emplace(slot_name(name), std::make_pair(name, &tensor)).second) {
      return refused(path, "two tensors of " + slot_name(name), "one", "Export the adapter again.");
    }
  }
  const std::string layers = "the layers that the bundle adapts, such as " + wanted[0].module;
  for (const SlotSpec& slot : wanted) {
    if (found.count(slot.name) == 0) {
      return refused(path, "no " + key_of(slot.name), layers, kLayers);
    }
  }
  for (const auto& [slot, entry] : found) {
    const bool known =
        std::any_of(wanted.begin(), wanted.end(), [&, &name = slot](const SlotSpec& one) { return one.name == name; });
    if (!known) {
      return refused(path, "also " + entry.first.substr(0, kLongestName), layers, kLayers);
    }
  }
  return found;
}

Status check_tensor(const TensorBytes& tensor, const SlotSpec& spec, const std::string& where) {
  if (number_bytes(tensor.dtype) == 0) {
    return refused(where, "the type " + tensor.dtype, "one of F32, F16, F64, BF16",
                   "Save the adapter in a floating-point type.");
  }
  const std::vector<int64_t> shape(spec.shape.rbegin(), spec.shape.rend());
  if (tensor.shape != shape) {
    return refused(where, "the shape " + shape_text(tensor.shape), shape_text(shape) + ", as the bundle has it",
                   kOther);
  }
  for (size_t i = 0; i < spec.elements; ++i) {
    if (!std::isfinite(number_at(tensor, i))) {
      return refused(where, "values that are not finite", "finite numbers",
                     "Use an adapter from a run that did not diverge.");
    }
  }
  return {};
}

}  // namespace

std::string peft_key(const std::string& half, const std::string& module) {
  return kPrefix + module + "." + half + ".weight";
}

Result<PeftSettings> read_peft_settings(const std::string& text, const std::string& where) {
  ZO_ASSIGN(content, read_config(text, where));
  ZO_ASSIGN(scaling, PeftScaling::read(text, where));
  const json base = content.value("base_model_name_or_path", json());
  return PeftSettings{std::move(scaling), base.is_string() ? base.get<std::string>() : ""};
}

Status read_peft(const std::string& folder, const PeftSettings& own, const std::vector<SlotSpec>& wanted,
                 const std::function<Status(size_t slot, const float* values)>& take) {
  const std::string described = join(folder, kPeftConfig);
  ZO_ASSIGN(text, read_file(described, ZO_STATE_ERROR));
  ZO_ASSIGN(content, read_config(text, described));
  const json kind = content.value("peft_type", json());
  if (kind != "LORA") {
    return refused(described, "the peft_type " + shown(kind), "'LORA'", "Only LoRA adapters can be imported.");
  }
  ZO_ASSIGN(given, PeftScaling::read(text, described));
  ZO_TRY(check_config(content, given, own.scaling, wanted, described));
  const std::string path = join(folder, kPeftWeights);
  ZO_ASSIGN(file, SafeTensors::open(path, ZO_STATE_ERROR));
  ZO_ASSIGN(tensors, named(file, wanted, path));
  for (const SlotSpec& slot : wanted) {
    const auto& [name, tensor] = tensors.at(slot.name);
    std::string where = path;
    where.append(", ").append(name);
    ZO_TRY(check_tensor(*tensor, slot, where));
  }
  std::vector<float> values;
  for (size_t i = 0; i < wanted.size(); ++i) {
    turned(*tensors.at(wanted[i].name).second, wanted[i], values);
    ZO_TRY(take(i, values.data()));
  }
  return {};
}

}  // namespace zoexport
