#include "session/adapters/peft_writer.h"

#include <nlohmann/json.hpp>

#include "session/adapters/peft_reader.h"
#include "session/storage/output.h"
#include "session/storage/safetensors.h"

namespace zoexport {
namespace {

// The library's own: metadata, then the tensors, each with these members in this order. PEFT refuses files that do not say which
// framework's layout they have.
std::string head_of(const std::vector<AdapterTensor>& tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t begin = 0;
  for (const AdapterTensor& tensor : tensors) {
    const uint64_t end = begin + tensor.elements() * sizeof(float);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", {tensor.rows, tensor.columns}}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  return safetensors_head(header.dump());
}

}  // namespace

Status write_peft(const std::vector<AdapterLayer>& layers, const std::string& description, const std::string& path,
                  bool replace) {
  ZO_TRY(check_layers(layers));
  std::vector<AdapterTensor> tensors;
  for (const AdapterLayer& layer : layers) {
    tensors.push_back({peft_key("lora_A", layer.module), layer.rank, layer.inputs, &layer.a, {}});
    tensors.push_back({peft_key("lora_B", layer.module), layer.outputs, layer.rank, &layer.b, {}});
  }
  ZO_TRY(sort_by_name(tensors));
  ZO_ASSIGN(output, Output::at(path, replace));
  ZO_TRY(
      output.write(kPeftConfig, [&](OutputFile& file) { return file.write(description.data(), description.size()); }));
  ZO_TRY(output.write(kPeftWeights, [&](OutputFile& file) -> Status {
    const std::string head = head_of(tensors);
    ZO_TRY(file.write(head.data(), head.size()));
    TensorReader reader;
    for (const AdapterTensor& tensor : tensors) {
      ZO_ASSIGN(values, reader.read(tensor));
      ZO_TRY(file.write(values->data(), values->size() * sizeof(float)));
    }
    return {};
  }));
  return output.become_folder();
}

}  // namespace zoexport
