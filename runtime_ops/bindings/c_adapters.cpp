// The C ABI's verbs on adapters: under names, and as files.
#include <algorithm>
#include <string>
#include <vector>

#include "bindings/c_session.h"
#include "session/adapters/gguf_writer.h"
#include "session/adapters/peft_reader.h"
#include "session/adapters/peft_writer.h"
#include "session/storage/json_reader.h"

using namespace zoexport::c;
using nlohmann::json;
using zoexport::AdapterLayer;
using zoexport::Failure;
using zoexport::JsonNode;
using zoexport::Options;
using zoexport::Result;
using zoexport::Status;

namespace {

Result<zoexport::ExportOptions> read_export(const Options& options) {
  const std::string outtype = options.text("outtype");
  const bool gguf = options.text("format") == "gguf";
  if (!gguf && outtype != "f32") {
    return Failure{ZO_INVALID_ARGUMENT, "option 'outtype'", outtype, "f32, as PEFT's form has one type",
                   "Leave it out, or write format gguf."};
  }
  const int32_t type = outtype == "q8_0"  ? zoexport::ZO_OUTTYPE_Q8_0
                       : outtype == "f16" ? zoexport::ZO_OUTTYPE_F16
                                          : zoexport::ZO_OUTTYPE_F32;
  return zoexport::ExportOptions{gguf, type, options.flag("replace")};
}

// Read the layers of the option `layers`, without their matrices; there must be `count` layers.
Result<std::vector<AdapterLayer>> read_layers(const Options& options, size_t count) {
  std::vector<AdapterLayer> layers;
  const bool gguf = options.text("format") == "gguf";
  zoexport::JsonProblems problems(ZO_INVALID_ARGUMENT, "option 'layers'", "Correct the layer.");
  const json& given = options.value("layers");
  for (const json& one : given) {
    const JsonNode node(&one, "layer " + std::to_string(layers.size() + 1), &problems);
    const auto size = [&](const char* key) { return static_cast<uint64_t>(node.member(key).integer(0, INT64_MAX)); };
    const auto optional = [&](const char* key) {
      return node.has(key) ? static_cast<uint32_t>(node.member(key).integer(0, UINT32_MAX)) : 0;
    };
    AdapterLayer layer;
    layer.module = node.member(gguf ? "weight" : "module").text();
    if (gguf) {
      layer.llama_cpp = {layer.module, {optional("pairs"), optional("groups"), optional("width")}};
    }
    layer.inputs = size("inputs");
    layer.rank = size("rank");
    layer.outputs = size("outputs");
    if (layer.module.empty()) {
      node.problem("a layer with a name");
    }
    layers.push_back(std::move(layer));
  }
  ZO_TRY(problems.status());
  if (count != 2 * layers.size()) {
    return Failure{ZO_INVALID_ARGUMENT, "matrices", std::to_string(count),
                   std::to_string(2 * layers.size()) + ", two for each layer", "Pass A and B of each layer."};
  }
  return layers;
}

// Checks that no matrix is null.
template <typename Matrix>
Status check_matrices(const Matrix* matrices, size_t count) {
  if (count > 0) {
    ZO_REQUIRE(matrices);
  }
  for (size_t i = 0; i < count; ++i) {
    ZO_REQUIRE(matrices[i]);
  }
  return {};
}

Result<std::string> required(const Options& options, const char* key) {
  if (!options.has(key)) {
    return Failure{ZO_INVALID_ARGUMENT, std::string("option '") + key + "'", "nothing", "a text", "Pass it."};
  }
  return options.text(key);
}

zoexport::SlotSpec matrix(const char* half, const std::string& module, uint64_t rows, uint64_t columns) {
  zoexport::SlotSpec spec;
  spec.name = std::string(half) + "." + module;
  spec.module = module;
  spec.shape = {static_cast<int64_t>(rows), static_cast<int64_t>(columns)};
  spec.elements = rows * columns;
  return spec;
}

}  // namespace

zo_status zo_session_load_adapter(zo_session* session, const char* name, const char* folder, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(name);
    ZO_TRY(check_path(folder, "folder"));
    return impl.load_adapter(name, folder);
  });
}

zo_status zo_session_write_adapter(zo_session* session, const char* name, const char* slot, const void* values,
                                   size_t bytes, zo_error* error) {
  return with_slot(session, slot, values, bytes, error, [&](zoexport::Session& impl, size_t index) -> Status {
    ZO_REQUIRE(name);
    return impl.write_adapter(name, index, values);
  });
}

zo_status zo_session_drop_adapter(zo_session* session, const char* name, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(name);
    return impl.drop_adapter(name);
  });
}

zo_status zo_session_export_adapter(zo_session* session, const char* options, const char* path, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_TRY(check_path(path, "path"));
    ZO_ASSIGN(given, Options::parse("export", options));
    ZO_ASSIGN(chosen, read_export(given));
    return impl.export_adapter(chosen, path);
  });
}

zo_status zo_adapter_write(const char* adapter, const float* const* matrices, size_t count, const char* path,
                           zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(path, "path"));
    ZO_ASSIGN(given, Options::parse("adapter", adapter));
    ZO_ASSIGN(chosen, read_export(given));
    ZO_TRY(check_matrices(matrices, count));
    ZO_ASSIGN(layers, read_layers(given, count));
    for (size_t i = 0; i < layers.size(); ++i) {  // matrices are read in place
      const float* const a = matrices[2 * i];
      const float* const b = matrices[2 * i + 1];
      const uint64_t of_a = layers[i].inputs * layers[i].rank, of_b = layers[i].rank * layers[i].outputs;
      layers[i].a = [a, of_a](float* values) { std::copy_n(a, of_a, values); };
      layers[i].b = [b, of_b](float* values) { std::copy_n(b, of_b, values); };
    }
    if (!chosen.gguf) {
      ZO_ASSIGN(description, required(given, "description"));
      return zoexport::write_peft(layers, description, path, chosen.replace);
    }
    ZO_ASSIGN(architecture, required(given, "architecture"));
    const auto alpha = static_cast<float>(given.number("alpha"));
    return zoexport::write_gguf(layers, {architecture, given.text("base_model"), alpha, chosen.outtype}, path,
                                chosen.replace);
  });
}

zo_status zo_adapter_read(const char* folder, const char* adapter, float* const* matrices, size_t count,
                          zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(folder, "folder"));
    ZO_ASSIGN(given, Options::parse("adapter", adapter));
    ZO_ASSIGN(description, required(given, "description"));
    ZO_TRY(check_matrices(matrices, count));
    ZO_ASSIGN(layers, read_layers(given, count));
    std::vector<zoexport::SlotSpec> wanted;
    for (const AdapterLayer& layer : layers) {
      wanted.push_back(matrix("lora_A", layer.module, layer.inputs, layer.rank));
      wanted.push_back(matrix("lora_B", layer.module, layer.rank, layer.outputs));
    }
    ZO_TRY(zoexport::check_layers(layers));
    ZO_ASSIGN(own, zoexport::read_peft_settings(description, "description"));
    return zoexport::read_peft(folder, own, wanted, [&](size_t slot, const float* values) {
      std::copy_n(values, wanted[slot].elements, matrices[slot]);
      return Status();
    });
  });
}
