#include "session/adapters/gguf_writer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/half.h"
#include "session/decimal.h"
#include "session/storage/output.h"
#include "session/text/utf8.h"

namespace zoexport {
namespace {

using kernels::float_to_half;

constexpr uint64_t kAlignment = 32;
constexpr uint64_t kBlock = 32;  // numbers of Q8_0 that share a scale
constexpr uint64_t kBlockBytes = 2 + kBlock;
constexpr uint16_t kInfiniteHalf = 0x7C00u;

// GGUF's numbers of types of fields, and ggml's of tensors.
enum FieldType : uint32_t { kUint32 = 4, kFloat32 = 6, kText = 8 };
enum class TensorType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8 };

uint64_t padded(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

const char* outtype_name(int32_t outtype) {
  return outtype == ZO_OUTTYPE_F16 ? "f16" : outtype == ZO_OUTTYPE_Q8_0 ? "q8_0" : "f32";
}

// llama.cpp's number of a whole file's type.
uint32_t file_type(int32_t outtype) { return outtype == ZO_OUTTYPE_Q8_0 ? 7 : outtype == ZO_OUTTYPE_F16 ? 1 : 0; }

TensorType type_of(const AdapterTensor& tensor, int32_t outtype) {
  return outtype == ZO_OUTTYPE_F32                                    ? TensorType::kF32
         : outtype == ZO_OUTTYPE_Q8_0 && tensor.columns % kBlock == 0 ? TensorType::kQ8_0
                                                                      : TensorType::kF16;
}

uint64_t bytes_of(const AdapterTensor& tensor, TensorType type) {
  return type == TensorType::kF32   ? tensor.elements() * sizeof(float)
         : type == TensorType::kF16 ? tensor.elements() * sizeof(uint16_t)
                                    : tensor.elements() / kBlock * kBlockBytes;
}

template <typename Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void put_text(std::string& bytes, const std::string& text) {
  put(bytes, uint64_t{text.size()});
  bytes += text;
}

class Fields {
 public:
  void text(const std::string& name, const std::string& value) {
    begin(name, kText);
    put_text(bytes_, value);
  }
  void number(const std::string& name, uint32_t value) {
    begin(name, kUint32);
    put(bytes_, value);
  }
  void real(const std::string& name, float value) {
    begin(name, kFloat32);
    put(bytes_, value);
  }
  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(const std::string& name, FieldType type) {
    put_text(bytes_, name);
    put(bytes_, uint32_t{type});
    ++count_;
  }
  std::string bytes_;
  uint64_t count_ = 0;
};

// In the order of the package gguf.
Fields fields_of(const GgufSettings& settings) {
  constexpr uint32_t kQuantizationVersion = 2;
  Fields fields;
  fields.text("general.architecture", settings.architecture);
  fields.text("general.type", "adapter");
  fields.number("general.file_type", file_type(settings.outtype));
  fields.number("general.quantization_version", kQuantizationVersion);
  if (!settings.base_model.empty()) {
    fields.number("general.base_model.count", 1);
    fields.text("general.base_model.0.name", settings.base_model);
  }
  fields.text("adapter.type", "lora");
  fields.real("adapter.lora.alpha", settings.alpha);
  return fields;
}

std::string head_of(const std::vector<AdapterTensor>& tensors, const GgufSettings& settings) {
  constexpr uint32_t kVersion = 3;
  constexpr uint32_t kDimensions = 2;
  const Fields fields = fields_of(settings);
  std::string head = "GGUF";
  put(head, kVersion);
  put(head, uint64_t{tensors.size()});
  put(head, fields.count());
  head += fields.bytes();
  uint64_t offset = 0;
  for (const AdapterTensor& tensor : tensors) {
    const TensorType type = type_of(tensor, settings.outtype);
    put_text(head, tensor.name);
    put(head, kDimensions);
    put(head, tensor.columns);
    put(head, tensor.rows);
    put(head, static_cast<uint32_t>(type));
    put(head, offset);
    offset += padded(bytes_of(tensor, type));
  }
  head.resize(padded(head.size()), '\0');
  return head;
}

// Append a block: its scale, then the quantized values. Return whether the scale fits float16.
bool put_block(std::string& bytes, const float* values) {
  float largest = 0;
  for (uint64_t i = 0; i < kBlock; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
  }
  const float scale = largest / 127;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  const uint16_t half = float_to_half(scale);
  put(bytes, half);
  for (uint64_t i = 0; i < kBlock; ++i) {
    // If the scale's inverse overflows float, the scale is zero as float16 and the values have no effect.
    put(bytes, static_cast<int8_t>(std::isfinite(inverse) ? std::round(values[i] * inverse) : 0));
  }
  return half != kInfiniteHalf;
}

// Append the bytes of finite numbers, whole rows. Return whether the type can represent all of them.
bool put_values(std::string& bytes, const std::vector<float>& values, TensorType type) {
  bool fits = true;
  if (type == TensorType::kF32) {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  } else if (type == TensorType::kF16) {
    for (const float value : values) {
      const uint16_t half = float_to_half(value);
      fits = fits && (half & 0x7FFFu) != kInfiniteHalf;
      put(bytes, half);
    }
  } else {
    for (size_t begin = 0; begin < values.size(); begin += kBlock) {
      fits = put_block(bytes, &values[begin]) && fits;
    }
  }
  return fits;
}

Failure beyond_half(const AdapterTensor& tensor, const std::vector<float>& values, int32_t outtype) {
  float largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::fabs(value));
  }
  const std::string found = decimal(static_cast<double>(largest)) + " in " + tensor.name;
  return {ZO_INVALID_ARGUMENT, std::string("outtype '") + outtype_name(outtype) + "'", found,
          "numbers within 65504, the largest of float16", "Use --outtype f32."};
}

// Row i of a head's first half becomes its row 2 i, and of its second half 2 i + 1; `half` rows each.
std::vector<uint64_t> paired_rows(uint64_t heads, uint64_t half) {
  std::vector<uint64_t> rows;
  rows.reserve(2 * heads * half);
  for (uint64_t head = 0; head < heads; ++head) {
    for (uint64_t i = 0; i < half; ++i) {
      rows.push_back(2 * head * half + i);
      rows.push_back((2 * head + 1) * half + i);
    }
  }
  return rows;
}

// Groups of `heads` heads of `width` rows, whose last two are a key and a value: all queries, then all keys, then all values.
std::vector<uint64_t> grouped_rows(uint64_t groups, uint64_t heads, uint64_t width) {
  std::vector<uint64_t> rows;
  rows.reserve(groups * heads * width);
  for (const auto& [begin, end] : {std::pair(uint64_t{0}, heads - 2), {heads - 2, heads - 1}, {heads - 1, heads}}) {
    for (uint64_t group = 0; group < groups; ++group) {
      for (uint64_t i = begin * width; i < end * width; ++i) {
        rows.push_back(group * heads * width + i);
      }
    }
  }
  return rows;
}

// For each row of B in llama.cpp's order, return its row in transformers' order; empty if the orders are equal.
Result<std::vector<uint64_t>> rows_in_order(const AdapterLayer& layer) {
  const RowOrder& order = layer.llama_cpp.order;
  const bool paired = order.pairs != 0;
  const bool grouped = order.groups != 0;
  if (!paired && !grouped) {
    return std::vector<uint64_t>();
  }
  const uint64_t unit = paired ? 2 * uint64_t{order.pairs} : uint64_t{order.groups} * order.width;
  const uint64_t parts = unit == 0 ? 0 : layer.outputs / unit;
  if ((paired && grouped) || parts * unit != layer.outputs || parts < (paired ? 1 : 3)) {
    return Failure{ZO_INVALID_ARGUMENT, "adapted layer " + layer.module, std::to_string(layer.outputs) + " outputs",
                   paired ? "pairs of rows in " + std::to_string(order.pairs) + " heads"
                          : std::to_string(order.groups) + " groups of queries, a key and a value, " +
                                std::to_string(order.width) + " rows each",
                   "Compile the model again; the order of its rows does not fit its slots."};
  }
  return paired ? paired_rows(order.pairs, parts) : grouped_rows(order.groups, parts, order.width);
}

Status check_settings(const GgufSettings& settings) {
  for (const std::string* text : {&settings.architecture, &settings.base_model}) {
    if (valid_utf8(*text) != text->size()) {
      return Failure{ZO_INVALID_ARGUMENT, "adapter", "a model's name that is no UTF-8", "names in UTF-8",
                     "Pass the names of the base model."};
    }
  }
  if (settings.architecture.empty() || !std::isfinite(settings.alpha)) {
    return Failure{ZO_INVALID_ARGUMENT, "adapter",
                   settings.architecture.empty() ? "no architecture" : "no finite alpha",
                   "llama.cpp's name of the base model, and a number", "Pass both."};
  }
  return {};
}

}  // namespace

Status write_gguf(const std::vector<AdapterLayer>& layers, const GgufSettings& settings, const std::string& path,
                  bool replace) {
  ZO_TRY(check_layers(layers));
  ZO_TRY(check_settings(settings));
  std::vector<AdapterTensor> tensors;
  for (const AdapterLayer& layer : layers) {
    ZO_ASSIGN(order, rows_in_order(layer));
    const std::string& weight = layer.llama_cpp.weight;
    tensors.push_back({weight + ".lora_a", layer.rank, layer.inputs, &layer.a, {}});
    tensors.push_back({weight + ".lora_b", layer.outputs, layer.rank, &layer.b, std::move(order)});
  }
  ZO_TRY(sort_by_name(tensors));
  ZO_ASSIGN(output, Output::at(path, replace));
  const std::string name = "adapter.gguf";
  ZO_TRY(output.write(name, [&](OutputFile& file) -> Status {
    const std::string head = head_of(tensors, settings);
    ZO_TRY(file.write(head.data(), head.size()));
    TensorReader reader;
    std::string bytes;
    for (const AdapterTensor& tensor : tensors) {
      ZO_ASSIGN(values, reader.read(tensor));
      bytes.clear();
      if (!put_values(bytes, *values, type_of(tensor, settings.outtype))) {
        return beyond_half(tensor, *values, settings.outtype);
      }
      bytes.resize(padded(bytes.size()), '\0');
      ZO_TRY(file.write(bytes.data(), bytes.size()));
    }
    return {};
  }));
  return output.become_file(name);
}

}  // namespace zoexport
