#include "session/manifest/manifest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "session/manifest/canonical.h"
#include "session/manifest/generate.h"
#include "session/manifest/grid.h"
#include "session/manifest/needs.h"
#include "session/manifest/program_reader.h"
#include "session/manifest/signature.h"
#include "session/manifest/stages.h"
#include "session/manifest/step.h"
#include "session/manifest/update.h"
#include "session/storage/files.h"
#include "session/storage/json_reader.h"
#include "session/storage/sha256.h"

namespace zoexport {
namespace {

const char* const kManifest = "manifest.json";
const char* const kAgain = "Copy the bundle again from where it was compiled, or compile it again.";
const char* const kFindBundle = "Check the path; zoexport compile writes bundles.";

const ValueSpec* with_role(const std::vector<ValueSpec>& values, const std::string& role) {
  for (const ValueSpec& value : values) {
    if (value.role == role) {
      return &value;
    }
  }
  return nullptr;
}

SlotSpec read_slot(const JsonNode& node) {
  SlotSpec slot;
  slot.name = node.member("name").text();
  slot.role = node.member("role").text();
  slot.module = node.has("module") ? node.member("module").text() : "";
  slot.dtype = dtype_from_text(node.member("dtype").text());
  const auto known = {ZO_FLOAT32, ZO_FLOAT16, ZO_UINT8, ZO_INT8, ZO_INT32};
  if (std::find(known.begin(), known.end(), slot.dtype) == known.end() ||
      (slot.dtype == ZO_INT32 && slot.role == "trainable")) {
    node.member("dtype").problem("float32, float16, uint8, int8, or int32 where it is not trained");
    slot.dtype = ZO_FLOAT32;
  }
  slot.tensor_id = static_cast<uint32_t>(node.member("tensor_id").integer(0, UINT32_MAX - 1));
  slot.elements = 1;
  for (const JsonNode& size : node.member("shape").items()) {
    slot.shape.push_back(size.integer(1, kLargest));
    slot.elements *= static_cast<uint64_t>(slot.shape.back());
    if (slot.elements > static_cast<uint64_t>(kLargest)) {
      node.problem("at most " + std::to_string(kLargest) + " elements");
      slot.elements = 1;
    }
  }
  return slot;
}

RunSettings read_settings(const JsonNode& node, JsonProblems& problems) {
  RunSettings settings;
  for (const auto& [key, entry] : node.entries()) {
    if (const Status read = settings.read(key, entry.value()); !read.ok()) {
      problems.add(entry.path(), read.failure().found, read.failure().expected);
    }
  }
  if (!settings.has("learning_rate")) {
    node.member("learning_rate").problem("a number above 0");
  }
  return settings;
}

void check_names(const Manifest& manifest, JsonProblems& problems) {
  std::set<std::string> names;
  std::set<uint32_t> ids;
  for (const SlotSpec& slot : manifest.slots) {
    if (slot.dtype == ZO_FLOAT16 && !manifest.optimizer.empty() && manifest.queries() == 0) {
      problems.add("state", "the float16 slot " + slot.name + " with settings.optimizer and no queries",
                   "float32, as first-order methods keep their values");
    }
    if (!names.insert(slot.name).second || !ids.insert(slot.tensor_id).second) {
      problems.add("state", "two slots that share the name " + slot.name + " or a tensor_id", "distinct ones");
    }
  }
  std::set<std::string> programs;
  for (const ProgramSpec& program : manifest.programs) {
    if (!programs.insert(program.name).second) {
      problems.add("programs", "two programs named " + program.name, "distinct names");
    }
  }
}

// The programs of one engine, and how they are called.
void read_engine(const JsonNode& node, Manifest& manifest) {
  if (node.has("fallback")) {
    auto other = std::make_shared<Manifest>(manifest);
    read_engine(node.member("fallback"), *other);
    manifest.fallback = std::move(other);
  }
  manifest.engine = node.member("engine").text();
  manifest.rows = static_cast<uint32_t>(node.member("rows").integer(1, 1 << 20));
  manifest.max_labels = static_cast<uint32_t>(node.member("max_labels").integer(1, 1 << 26));
  manifest.copies = static_cast<uint32_t>(node.member("copies").integer(1, 1 << 16));
  for (const JsonNode& program : node.member("programs").items()) {
    manifest.programs.push_back(read_program(program));
  }
  if (node.has("backends")) {
    for (const JsonNode& name : node.member("backends").items()) {
      manifest.backends.push_back(name.text());
    }
  }
  if (node.has("lengths")) {
    for (const JsonNode& entry : node.member("lengths").items()) {
      const int64_t least = manifest.lengths.empty() ? 1 : int64_t{manifest.lengths.back()} + 1;
      manifest.lengths.push_back(static_cast<uint32_t>(entry.integer(least, 1 << 20)));
    }
  }
  read_stages(node, manifest);
  read_step(node, manifest);
}

Status check_engine(const Manifest& manifest, const std::string& where) {
  JsonProblems problems(ZO_BUNDLE_ERROR, where, kAgain);
  check_names(manifest, problems);
  check_step(manifest, problems);
  check_grid(manifest, problems);
  for (const ProgramSpec& program : manifest.programs) {
    if (manifest.files.count(program.file) == 0) {
      problems.add("program " + program.name, "the file " + program.file, "a file listed under files");
    }
  }
  check_stages(manifest, problems);
  check_update(manifest, problems);
  check_generate(manifest, problems);
  ZO_TRY(problems.status());
  return check_needs(manifest, where);
}

Status check_id(const Manifest& manifest, const std::string& text, const std::string& where) {
  ZO_ASSIGN(canonical, canonical_json(text, "bundle_id"));
  const std::string id = sha256_hex(canonical.data(), canonical.size());
  if (id != manifest.bundle_id) {
    return Failure{ZO_BUNDLE_ERROR, where, "bundle_id " + manifest.bundle_id.substr(0, 16) + "... and other content",
                   "the content it was computed from (" + id.substr(0, 16) + "... is this content's)", kAgain};
  }
  return {};
}

Result<std::string> signed_text(const Folder& bundle, const TrustedKeys* trusted) {
  if (!bundle.has(kManifest)) {
    return Failure{ZO_BUNDLE_ERROR, bundle.path(), "no manifest.json", "a bundle", kFindBundle};
  }
  ZO_ASSIGN(file, bundle.file(kManifest));
  ZO_ASSIGN(text, file.read());
  if (trusted != nullptr) {
    ZO_TRY(check_signature(bundle, kManifest, text, *trusted));
  }
  return text;
}

}  // namespace

bool ValueSpec::has_shape(const std::vector<int64_t>& sizes) const {
  return std::equal(shape.begin(), shape.end(), sizes.begin(), sizes.end(),
                    [](const Dimension& a, int64_t b) { return !a.dynamic() && a.min == b; });
}

const ValueSpec* ProgramSpec::input(const std::string& role) const { return with_role(inputs, role); }
const ValueSpec* ProgramSpec::output(const std::string& role) const { return with_role(outputs, role); }

size_t Manifest::level_of(const std::string& slot) const {
  for (size_t i = stages.size(); i-- > 0;) {
    for (const auto& [name, bound] : stages[i].bind) {
      if (bound == slot) {
        return step.level_of(i);
      }
    }
  }
  return 0;
}

const ProgramSpec* Manifest::program(const std::string& name) const {
  for (const ProgramSpec& program : programs) {
    if (program.name == name) {
      return &program;
    }
  }
  return nullptr;
}

const ProgramSpec* Manifest::program(const std::string& family, uint32_t length) const {
  for (const ProgramSpec& program : programs) {
    if (program.family == family && (program.length == 0 || program.length == length)) {
      return &program;
    }
  }
  return nullptr;
}

Result<Manifest> parse_manifest(const std::string& text, const std::string& where) {
  ZO_ASSIGN(document, parse_json(text.data(), text.data() + text.size(), ZO_BUNDLE_ERROR, where, kAgain));
  JsonProblems problems(ZO_BUNDLE_ERROR, where, kAgain);
  const JsonNode root(&document, "", &problems);
  const int64_t schema = root.member("schema_version").integer(1, kLargest);
  ZO_TRY(problems.status());
  if (schema > kManifestSchema) {
    return Failure{ZO_BUNDLE_ERROR, where, "schema_version " + std::to_string(schema),
                   "at most " + std::to_string(kManifestSchema),
                   "Update zoexport, or compile the bundle with this version."};
  }
  Manifest manifest;
  manifest.bundle_id = root.member("bundle_id").text();
  const bool hexadecimal = manifest.bundle_id.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (manifest.bundle_id.size() != 64 || !hexadecimal) {
    root.member("bundle_id").problem("64 lower-case hexadecimal digits");
  }
  manifest.method = root.member("method").text();
  manifest.target = root.member("target").text();
  manifest.rng = root.member("rng").text();
  if (root.has("model") && root.member("model").has("vocab_size")) {
    manifest.vocab_size = root.member("model").member("vocab_size").integer(1, kLargest);
  }
  if (root.has("model") && root.member("model").has("llama_cpp")) {
    manifest.llama_cpp = read_llama_cpp(root.member("model").member("llama_cpp"));
  }
  const JsonNode settings = root.member("settings");
  manifest.settings = read_settings(settings, problems);
  if (settings.has("lora.dropout")) {
    manifest.dropout = settings.member("lora.dropout").number();
    if (!(manifest.dropout >= 0 && manifest.dropout < 1)) {
      settings.member("lora.dropout").problem("a number from 0 to below 1");
    }
  }
  if (settings.has("optimizer")) {
    manifest.optimizer = settings.member("optimizer").text();
    const std::string& name = manifest.optimizer;
    UpdateKind kind;
    const bool of_log = root.has("step") && update_from_text(name, kind);  // `step` has the rule
    if (name != "adamw" && name != "sgd" && !of_log) {
      settings.member("optimizer").problem("adamw or sgd; momentum, adam or muon beside step");
    }
  }
  for (const auto& [name, entry] : root.member("files").entries()) {
    if (!stays_inside(name)) {
      problems.add("files", "the name " + name, "names of files in the bundle");
    }
    manifest.files[name] = {entry.member("bytes").unsigned_integer(), entry.member("sha256").text()};
  }
  for (const JsonNode& slot : root.member("state").items()) {
    manifest.slots.push_back(read_slot(slot));
  }
  if (root.has("required_ops")) {
    for (const JsonNode& name : root.member("required_ops").items()) {
      manifest.required_ops.push_back(name.text());
    }
  }
  if (root.has("tokenizer")) {
    for (const JsonNode& name : root.member("tokenizer").items()) {
      manifest.tokenizer.push_back(name.text());
    }
  }
  if (root.has("text")) {
    manifest.text = read_text_spec(root.member("text"), manifest.vocab_size);
  }
  if (root.has("weights")) {
    manifest.weights = read_file_name(root.member("weights").member("file"));
    if (manifest.files.count(manifest.weights) == 0) {
      root.member("weights").problem("a file listed under files");
    }
  }
  read_grid(root, manifest);
  read_generate(root, manifest);
  read_engine(root, manifest);
  ZO_TRY(problems.status());
  for (const Manifest* each = &manifest; each != nullptr; each = each->fallback.get()) {
    ZO_TRY(check_engine(*each, each == &manifest ? where : where + ", fallback"));
  }
  ZO_TRY(check_id(manifest, text, where));
  return manifest;
}

Result<Manifest> read_manifest(const Folder& bundle, const TrustedKeys* trusted) {
  ZO_ASSIGN(text, signed_text(bundle, trusted));
  return parse_manifest(text, join(bundle.path(), kManifest));
}

Result<std::string> verified_manifest(const Folder& bundle, const TrustedKeys* trusted) {
  ZO_ASSIGN(text, signed_text(bundle, trusted));
  ZO_TRY(parse_manifest(text, join(bundle.path(), kManifest)));
  return text;
}

Result<Folder> open_bundle(const std::string& bundle) {
  if (!exists(bundle)) {
    return Failure{ZO_BUNDLE_ERROR, bundle, "no such folder", "a bundle", kFindBundle};
  }
  return Folder::open(bundle, ZO_BUNDLE_ERROR);
}

}  // namespace zoexport
