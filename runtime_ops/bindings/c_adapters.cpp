// The C ABI's verbs on adapters: under names, and as files.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "bindings/c_session.h"
#include "session/adapters/gguf_writer.h"
#include "session/adapters/peft_reader.h"
#include "session/adapters/peft_writer.h"
#include "zoexport/session.h"

using namespace zoexport::c;
using zoexport::AdapterLayer;
using zoexport::Failure;
using zoexport::SlotForm;
using zoexport::Status;

namespace {

zo_status write_adapter(zo_session* session, const char* name, const char* slot, SlotForm form, const void* values,
                        size_t count, zo_error* error) {
  return with_slot(session, slot, form, values, count, error, [&](zoexport::Session& impl, size_t index) -> Status {
    ZO_REQUIRE(name);
    return impl.write_adapter(name, index, form, values);
  });
}

zoexport::Result<zoexport::ExportOptions> read_export(const zo_export_options* options) {
  ZO_REQUIRE(options);
  zo_export_options given;
  ZO_TRY(read_struct(*options, sizeof(zo_export_options), "zo_export_options", given));
  if (given.format != ZO_ADAPTER_PEFT && given.format != ZO_ADAPTER_GGUF) {
    return Failure{ZO_INVALID_ARGUMENT, "format", std::to_string(given.format), "one of ZO_ADAPTER_*",
                   "Pass one of them."};
  }
  const bool peft = given.format == ZO_ADAPTER_PEFT;
  if (given.outtype < ZO_OUTTYPE_F32 || given.outtype > (peft ? ZO_OUTTYPE_F32 : ZO_OUTTYPE_Q8_0)) {
    return Failure{ZO_INVALID_ARGUMENT, "outtype", std::to_string(given.outtype),
                   peft ? "ZO_OUTTYPE_F32, as PEFT's form has one type" : "one of ZO_OUTTYPE_*", "Pass one of them."};
  }
  return zoexport::ExportOptions{given.format, given.outtype, given.replace != 0};
}

// Matrices are read where they lie.
zoexport::Result<AdapterLayer> read_layer(const zo_adapter_layer& given, bool peft) {
  ZO_REQUIRE(given.a);
  ZO_REQUIRE(given.b);
  const char* const name = peft ? given.module : given.weight;
  if (name == nullptr || *name == '\0') {
    return Failure{ZO_INVALID_ARGUMENT, peft ? "module" : "weight", "no name", "the layer's", "Pass one."};
  }
  AdapterLayer layer;
  layer.module = name;
  if (!peft) {
    layer.llama_cpp = {name, {given.pairs, given.groups, given.width}};
  }
  layer.inputs = given.inputs;
  layer.rank = given.rank;
  layer.outputs = given.outputs;
  layer.a = [given](float* values) { std::copy_n(given.a, given.inputs * given.rank, values); };
  layer.b = [given](float* values) { std::copy_n(given.b, given.rank * given.outputs, values); };
  return layer;
}

zoexport::SlotSpec matrix(const char* half, const char* module, uint64_t rows, uint64_t columns) {
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

zo_status zo_session_write_adapter(zo_session* session, const char* name, const char* slot, const float* values,
                                   size_t count, zo_error* error) {
  return write_adapter(session, name, slot, SlotForm::kFloat32, values, count, error);
}

zo_status zo_session_write_adapter_bytes(zo_session* session, const char* name, const char* slot, const void* bytes,
                                         size_t size, zo_error* error) {
  return write_adapter(session, name, slot, SlotForm::kBytes, bytes, size, error);
}

zo_status zo_session_drop_adapter(zo_session* session, const char* name, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(name);
    return impl.drop_adapter(name);
  });
}

zo_status zo_session_adapter(zo_session* session, uint32_t index, const char** name, zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_REQUIRE(name);
    const auto& adapters = impl.adapters();
    if (index >= adapters.size()) {
      return Failure{ZO_INVALID_ARGUMENT, "index", std::to_string(index), "below " + std::to_string(adapters.size()),
                     "Stop at the last adapter."};
    }
    *name = std::next(adapters.begin(), index)->first.c_str();
    return {};
  });
}

zo_status zo_session_export_adapter(zo_session* session, const zo_export_options* options, const char* path,
                                    zo_error* error) {
  return with_session(session, error, [&](zoexport::Session& impl) -> Status {
    ZO_TRY(check_path(path, "path"));
    ZO_ASSIGN(chosen, read_export(options));
    return impl.export_adapter(chosen, path);
  });
}

zo_status zo_adapter_write(const zo_adapter* adapter, const zo_export_options* options, const char* path,
                           zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_REQUIRE(adapter);
    ZO_TRY(check_path(path, "path"));
    ZO_ASSIGN(chosen, read_export(options));
    zo_adapter given;
    ZO_TRY(read_struct(*adapter, sizeof(zo_adapter), "zo_adapter", given));
    const bool peft = chosen.format == ZO_ADAPTER_PEFT;
    std::vector<AdapterLayer> layers;
    if (given.layer_count > 0) {
      ZO_REQUIRE(given.layers);
    }
    for (size_t i = 0; i < given.layer_count; ++i) {
      ZO_ASSIGN(layer, read_layer(given.layers[i], peft));
      layers.push_back(std::move(layer));
    }
    if (peft) {
      ZO_REQUIRE(given.description);
      return zoexport::write_peft(layers, given.description, path, chosen.replace);
    }
    ZO_REQUIRE(given.architecture);
    return zoexport::write_gguf(
        layers, {given.architecture, given.base_model == nullptr ? "" : given.base_model, given.alpha, chosen.outtype},
        path, chosen.replace);
  });
}

zo_status zo_adapter_read(const char* folder, const char* description, const zo_adapter_room* layers, size_t count,
                          zo_error* error) {
  return guarded(error, [&]() -> Status {
    ZO_TRY(check_path(folder, "folder"));
    ZO_REQUIRE(description);
    std::vector<AdapterLayer> sizes;
    std::vector<zoexport::SlotSpec> wanted;
    std::vector<float*> rooms;
    if (count > 0) {
      ZO_REQUIRE(layers);
    }
    for (size_t i = 0; i < count; ++i) {
      const zo_adapter_room& layer = layers[i];
      ZO_REQUIRE(layer.module);
      ZO_REQUIRE(layer.a);
      ZO_REQUIRE(layer.b);
      sizes.push_back({layer.module, {}, layer.inputs, layer.rank, layer.outputs, {}, {}});
      wanted.push_back(matrix("lora_A", layer.module, layer.inputs, layer.rank));
      wanted.push_back(matrix("lora_B", layer.module, layer.rank, layer.outputs));
      rooms.insert(rooms.end(), {layer.a, layer.b});
    }
    ZO_TRY(zoexport::check_layers(sizes));
    ZO_ASSIGN(own, zoexport::read_peft_settings(description, "description"));
    return zoexport::read_peft(folder, own, wanted, [&](size_t slot, const float* values) {
      std::copy_n(values, wanted[slot].elements, rooms[slot]);
      return Status();
    });
  });
}
