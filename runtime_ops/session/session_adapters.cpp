// Session: named adapters, and adapters as files.
#include "session/adapters/gguf_writer.h"
#include "session/adapters/peft_reader.h"
#include "session/adapters/peft_writer.h"
#include "session/session.h"
#include "session/state/slot_values.h"

namespace zoexport {
namespace {

constexpr size_t kLongestAdapterName = 128;
const std::string kHalfA = "lora_A.";
const std::string kHalfB = "lora_B.";

bool is_matrix(const SlotSpec& spec) { return !spec.integers() && spec.shape.size() == 2; }

}  // namespace

Result<std::string> Session::adapter_description(const std::string& where, const std::string& fix) const {
  if (manifest_.files.count(kPeftConfig) == 0) {
    return Failure{ZO_INVALID_ARGUMENT, where,
                   "a bundle of " + manifest_.method + ", which trains no adapter of PEFT's",
                   "one that was compiled with an adapter", fix};
  }
  ZO_ASSIGN(file, files_.open(kPeftConfig));
  return file.read();
}

// --- Named adapters --------------------------------------------------------------------------------------------------

Status Session::load_adapter(const std::string& name, const std::string& folder) {
  ZO_TRY(check_adapter_name(name));
  ZO_ASSIGN(description, adapter_description("adapter " + folder, "Write its slots by their names."));
  ZO_ASSIGN(own, read_peft_settings(description, join(files_.path(), kPeftConfig)));
  std::vector<size_t> places;
  std::vector<SlotSpec> wanted;
  for (size_t i = 0; i < slots_->size(); ++i) {
    const SlotSpec& spec = slots_->spec(i);
    if (NamedSlots::takes(*slots_, i)) {
      if (!is_matrix(spec)) {
        return Failure{ZO_INVALID_ARGUMENT, "adapter " + folder,
                       "a bundle whose slot " + spec.name + " is no matrix of floats",
                       "an adapter's two matrices a layer", "Write its slots by their names."};
      }
      places.push_back(i);
      wanted.push_back(spec);
    }
  }
  NamedSlots loaded(*slots_, scratch_folder_);
  std::vector<uint8_t> converted;
  ZO_TRY(read_peft(folder, own, wanted, [&](size_t slot, const float* values) {
    converted.resize(wanted[slot].bytes());
    write_values(wanted[slot], values, converted.data());
    return loaded.set(places[slot], converted.data());
  }));
  kept_.reset();
  adapters_.erase(name);
  adapters_.emplace(name, std::move(loaded));
  return {};
}

Status Session::write_adapter(const std::string& name, size_t slot, const void* values) {
  ZO_TRY(check_adapter_name(name));
  if (!NamedSlots::takes(*slots_, slot)) {
    return Failure{ZO_INVALID_ARGUMENT, "slot " + slots_->spec(slot).name, "a table of the bundle",
                   "a slot that is trained, or goes with one", "Leave it out."};
  }
  ZO_ASSIGN(converted, slot_bytes(slot, values));
  kept_.reset();
  const auto place = adapters_.try_emplace(name, *slots_, scratch_folder_);
  const Status set = place.first->second.set(slot, converted.data());
  if (!set.ok() && place.second) {
    adapters_.erase(place.first);
  }
  return set;
}

Status Session::drop_adapter(const std::string& name) {
  ZO_ASSIGN(place, find_adapter(name));
  kept_.reset();
  adapters_.erase(place);
  return {};
}

Result<std::map<std::string, NamedSlots>::iterator> Session::find_adapter(const std::string& name) {
  const auto found = adapters_.find(name);
  if (found != adapters_.end()) {
    return found;
  }
  std::string names;
  for (const auto& entry : adapters_) {
    names += (names.empty() ? "" : ", ") + entry.first;
  }
  return Failure{ZO_INVALID_ARGUMENT, "adapter " + name, "no adapter of this name",
                 names.empty() ? "the name of a loaded one" : "one of " + names, "Load it, or correct the name."};
}

Status Session::check_adapter_name(const std::string& name) const {
  if (name.empty() || name.size() > kLongestAdapterName) {
    return Failure{ZO_INVALID_ARGUMENT, "adapter's name", std::to_string(name.size()) + " bytes",
                   "1 to " + std::to_string(kLongestAdapterName), "Pass another name."};
  }
  return {};
}

// --- Adapters as files -----------------------------------------------------------------------------------------------

Status Session::export_adapter(const ExportOptions& options, const std::string& path) {
  ZO_ASSIGN(description,
            adapter_description("bundle " + files_.path(),
                                "Use `zoexport adapter export` on a computer: it writes what was trained."));
  ZO_ASSIGN(layers, adapter_layers());
  if (!options.gguf) {
    return write_peft(layers, description, path, options.replace);
  }
  ZO_TRY(name_for_llama_cpp(layers));
  ZO_ASSIGN(own, read_peft_settings(description, join(files_.path(), kPeftConfig)));
  ZO_ASSIGN(alpha, share_alpha(own.scaling, layers));
  const GgufSettings settings{manifest_.llama_cpp->architecture, own.base_model, static_cast<float>(alpha),
                              options.outtype};
  return write_gguf(layers, settings, path, options.replace);
}

Result<std::vector<AdapterLayer>> Session::adapter_layers() {
  ZO_ASSIGN(state, finished());
  std::vector<AdapterLayer> layers;
  const auto after = [](const std::string& text, const std::string& prefix) -> std::optional<std::string> {
    return text.compare(0, prefix.size(), prefix) == 0 ? std::make_optional(text.substr(prefix.size())) : std::nullopt;
  };
  for (size_t b = 0; b < slots_->size(); ++b) {
    const SlotSpec& spec = slots_->spec(b);
    const auto first = after(spec.name, kHalfA);
    if (first && slots_->find(kHalfB + *first) < slots_->size()) {
      continue;  // added together with its B
    }
    const auto module = after(spec.name, kHalfB);
    const size_t a = module ? slots_->find(kHalfA + *module) : slots_->size();
    if (a == slots_->size() || !is_matrix(slots_->spec(a)) || !is_matrix(spec) ||
        slots_->spec(a).shape[1] != spec.shape[0]) {
      return Failure{ZO_INVALID_ARGUMENT, "bundle " + files_.path(),
                     "the slot " + spec.name + ", which is no half of an adapter of floats",
                     "slots lora_A and lora_B of each adapted layer",
                     "Use `zoexport adapter export` on a computer: it turns integers into numbers."};
    }
    const auto values = [this, state](size_t slot) {
      return [this, state, slot](float* out) { read_values(slots_->spec(slot), state(slot), out); };
    };
    AdapterLayer& layer = layers.emplace_back();
    layer.module = *module;
    layer.inputs = static_cast<uint64_t>(slots_->spec(a).shape[0]);
    layer.rank = static_cast<uint64_t>(spec.shape[0]);
    layer.outputs = static_cast<uint64_t>(spec.shape[1]);
    layer.a = values(a);
    layer.b = values(b);
  }
  return layers;
}

Status Session::name_for_llama_cpp(std::vector<AdapterLayer>& layers) const {
  const std::string where = "bundle " + files_.path();
  const std::string expected = "the names that llama.cpp has for its layers";
  if (!manifest_.llama_cpp) {
    return Failure{ZO_BUNDLE_ERROR, where, "none of llama.cpp's names", expected, "Export PEFT's form."};
  }
  if (!manifest_.llama_cpp->problem.empty()) {
    return Failure{ZO_BUNDLE_ERROR, where, manifest_.llama_cpp->problem, expected, "Export PEFT's form."};
  }
  for (AdapterLayer& layer : layers) {
    const auto named = manifest_.llama_cpp->layers.find(layer.module);
    if (named == manifest_.llama_cpp->layers.end()) {
      return Failure{ZO_BUNDLE_ERROR, where, "no name of llama.cpp's for " + layer.module, expected,
                     "Copy the bundle again from where it was compiled, or compile it again."};
    }
    layer.llama_cpp = named->second;
  }
  return {};
}

}  // namespace zoexport
