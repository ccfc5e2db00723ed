// manifest.json: what a session knows of a bundle (docs/formats.md).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "session/manifest/llama_cpp.h"
#include "session/manifest/signature.h"
#include "session/manifest/step_plan.h"
#include "session/manifest/text_spec.h"
#include "session/options.h"
#include "session/result.h"
#include "session/storage/dtypes.h"

namespace zoexport {

inline constexpr int64_t kManifestSchema = 1;

// A size, or a range of sizes where min != max.
struct Dimension {
  int64_t min = 0;
  int64_t max = 0;
  bool dynamic() const { return min != max; }
};

struct ValueSpec {
  std::string name;
  std::string role;
  int32_t dtype = ZO_FLOAT32;
  std::vector<Dimension> shape;

  // Return whether every size is fixed and equal to `sizes`.
  bool has_shape(const std::vector<int64_t>& sizes) const;
};

struct ProgramSpec {
  std::string name;
  std::string file;
  std::string entry_point;
  std::string family;   // stages refer to programs of all lengths by it; empty if no stage does
  uint32_t length = 0;  // tokens of a row; 0 where one program takes all lengths, or no rows
  std::vector<ValueSpec> inputs;
  std::vector<ValueSpec> outputs;

  // The first input or output with a role, or null.
  const ValueSpec* input(const std::string& role) const;
  const ValueSpec* output(const std::string& role) const;
};

struct SlotSpec {
  std::string name;
  std::string role;
  std::string module;
  int32_t dtype = ZO_FLOAT32;  // or ZO_FLOAT16, ZO_UINT8, ZO_INT8, ZO_INT32
  std::vector<int64_t> shape;
  uint32_t tensor_id = 0;
  uint64_t elements = 0;

  size_t bytes() const { return elements * dtype_bytes(dtype); }
  // Return whether its values are not floats: indices, or INT8 or INT4 weights, two INT4 values per byte.
  bool integers() const { return dtype != ZO_FLOAT32 && dtype != ZO_FLOAT16; }
  // Return the number of trained values of a trainable slot: an element of uint8 is two integers.
  uint64_t trained_values() const { return dtype == ZO_UINT8 ? 2 * elements : elements; }
};

// Training of a bundle's integers (docs/noise.md).
struct GridSpec {
  std::string table;    // the slot of the roundings
  double eps = 0;       // that they were made for
  bool second = true;   // whether the second of a pair is the direction of an update
  bool summed = false;  // whether an update rounds the sum of all queries once, and not each
};

// Purpose of a run of a stage.
enum class Pass { kForward, kBackward, kEvaluate, kSaving, kFromSaved };

// One part of a model. Stages are applied in order: the first takes tokens, the last is the head, which scores labels. A
// whole model is one stage.
struct StageSpec {
  std::string name;
  std::string forward;                      // families of programs
  std::string backward;                     // empty if absent
  std::string evaluate;                     // forward without perturbation: of most stages the same family
  std::string saving;                       // forward, and gives results that `from_saved` takes; may be empty as both
  std::string from_saved;                   // backward from them
  std::map<std::string, std::string> bind;  // a program's local name -> tensor of the weights file, or slot

  const std::string& family(Pass pass) const {
    return pass == Pass::kForward    ? forward
           : pass == Pass::kBackward ? backward
           : pass == Pass::kEvaluate ? evaluate
           : pass == Pass::kSaving   ? saving
                                     : from_saved;
  }
};

// The programs that generate text (docs/export.md): stages that are applied in order to some tokens that follow others.
struct GenerateSpec {
  std::string problem;            // why there are none; what follows is empty then
  std::string engine;             // empty: the bundle's
  uint32_t context = 0;           // tokens of a prompt and what follows it, at most
  std::vector<uint32_t> lengths;  // tokens in one call, ascending
  std::vector<int64_t> stop_tokens;
  std::vector<ProgramSpec> programs;
  std::vector<StageSpec> stages;  // only `name`, `forward` and `bind` are used

  // The program of a stage for so many tokens; that of the last one has no length.
  const ProgramSpec* program(size_t stage, uint32_t length) const;
  // Return whether the programs keep nothing of earlier tokens, so that a call takes all of them: no call takes one.
  bool recomputes() const { return lengths.front() != 1; }
};

struct FileSpec {
  uint64_t bytes = 0;
  std::string sha256;
};

// Convert a setting from megabytes to bytes.
inline uint64_t in_bytes(uint32_t megabytes) { return uint64_t{megabytes} * 1000 * 1000; }

struct Manifest {
  std::string bundle_id;
  std::string method;
  std::string target;
  std::string engine;
  std::string rng;
  uint32_t rows = 0;
  uint32_t max_length = 0;
  uint32_t max_labels = 0;
  uint32_t copies = 0;
  int64_t vocab_size = 0;                 // 0 if not in the manifest
  std::optional<LlamaCppSpec> llama_cpp;  // absent if the bundle trains no adapter
  RunSettings settings;
  double dropout = 0;  // share of adapters' inputs that a step leaves out; of programs that take it
  std::vector<ProgramSpec> programs;
  std::vector<SlotSpec> slots;
  std::vector<std::string> required_ops;
  std::vector<std::string> tokenizer;  // its files
  std::optional<TextSpec> text;        // absent without a tokenizer
  std::vector<std::string> backends;   // of ExecuTorch, that the delegates call
  std::map<std::string, FileSpec> files;
  StepPlan step;                     // without levels where gradients are computed
  std::string optimizer;             // of the settings: adamw or sgd; may be empty for zeroth-order methods
  std::optional<GridSpec> grid;      // where the trainable slots are integers
  std::optional<int64_t> pad_token;  // of a model whose tokens see those that follow, and must not see padding

  std::string weights;            // the file of frozen tensors; empty where programs hold them
  std::vector<uint32_t> lengths;  // that programs are made for, ascending; the last is max_length. Empty: any
  std::vector<StageSpec> stages;
  std::optional<GenerateSpec> generate;
  uint32_t label_rows = 0;  // label entries in one call of a head that takes activations
  // This bundle with other programs, for machines that cannot run these; null if it has none.
  std::shared_ptr<const Manifest> fallback;

  // Return whether one stage is both first and head. Its programs choose label rows themselves; its forward program
  // perturbs its slots, for any number of copies of the same rows, and gives their next values.
  bool whole() const { return stages.size() == 1; }
  // Projected gradients of a step; 0 of a first-order method.
  uint32_t queries() const { return step.scalars(); }
  // Return the level that moves a slot: the level of the last group that reads it, or the first if no group reads it.
  size_t level_of(const std::string& slot) const;
  // Return a family's program for rows of `length` tokens, or its program for all lengths; null if absent.
  const ProgramSpec* program(const std::string& family, uint32_t length) const;
  const ProgramSpec* program(const std::string& name) const;
};

// Parses and checks a manifest; `where` is its path, for messages.
Result<Manifest> parse_manifest(const std::string& text, const std::string& where);

// The folder of a bundle.
Result<Folder> open_bundle(const std::string& bundle);

// Reads BUNDLE/manifest.json. If keys are given, one of them must have signed it: that is checked before any of it is
// parsed.
Result<Manifest> read_manifest(const Folder& bundle, const TrustedKeys* trusted);
// The same file as text, after these checks.
Result<std::string> verified_manifest(const Folder& bundle, const TrustedKeys* trusted);

}  // namespace zoexport
