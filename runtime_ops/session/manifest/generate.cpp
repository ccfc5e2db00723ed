#include "session/manifest/generate.h"

#include <algorithm>
#include <set>

#include "session/manifest/program_reader.h"
#include "session/manifest/roles.h"

namespace zoexport {
namespace {

constexpr int64_t kMostTokens = 1 << 20;

std::vector<int64_t> sizes(const ValueSpec& value) {
  std::vector<int64_t> found;
  found.reserve(value.shape.size());
  for (const Dimension& size : value.shape) {
    found.push_back(size.max);
  }
  return found;
}

// Checks one program as one stage's; the first problem ends it.
class StageCheck {
 public:
  StageCheck(const Manifest& manifest, size_t stage, const ProgramSpec& program, uint32_t length,
             JsonProblems& problems)
      : manifest_(manifest),
        stage_(manifest.generate->stages[stage]),
        program_(program),
        first_(stage == 0),
        head_(stage + 1 == manifest.generate->stages.size()),
        length_(length),
        problems_(problems) {}

  void run() { (void)(roles() && tokens() && bound() && caches() && head()); }

 private:
  bool fail(const std::string& found, const std::string& expected) {
    problems_.add("generate, stage " + stage_.name + ", program " + program_.name, found, expected);
    return false;
  }

  bool roles() {
    std::set<std::string> inputs = {"weight", "state", "epsilon", "seed", "step", "noise"};
    inputs.insert(first_ ? "tokens" : "activation");
    if (!head_ && !manifest_.generate->recomputes()) {
      inputs.insert({"table", "cache", "position", "count"});
    }
    const std::set<std::string> outputs =
        head_ ? std::set<std::string>{"logits"} : std::set<std::string>{"activation", "cache_rows"};
    return allowed(program_.inputs, inputs) && allowed(program_.outputs, outputs);
  }

  bool allowed(const std::vector<ValueSpec>& values, const std::set<std::string>& roles) {
    std::set<std::string> names;
    for (const ValueSpec& value : values) {
      if (roles.count(value.role) == 0) {
        return fail("the value " + value.name + " with the role " + value.role, "a role of docs/formats.md");
      }
      if (!names.insert(value.name).second) {
        return fail("two values named " + value.name, "distinct names");
      }
      const bool fixed =
          std::none_of(value.shape.begin(), value.shape.end(), [](const Dimension& size) { return size.dynamic(); });
      const bool counts = value.role == "position" || value.role == "count";
      const bool scalar = scalar_dtype(value.role) >= 0 || counts;
      const bool any = value.role == "weight" || value.role == "state" || value.role == "table";
      const int32_t dtype = counts || value.role == "tokens" ? ZO_INT64
                            : scalar                         ? scalar_dtype(value.role)
                                                             : ZO_FLOAT32;
      if (!fixed || value.shape.empty() || (!any && value.dtype != dtype) || (scalar && !value.has_shape({1}))) {
        return fail("another dtype or a range of sizes of " + value.name,
                    "the dtype of docs/formats.md, and fixed sizes");
      }
      if (is_noise(value) && !fits_noise(manifest_, value)) {
        return fail("the input " + value.name + " of another name, dtype or shape",
                    "noise.SLOT, float32 (queries, *SLOT)");
      }
    }
    return true;
  }

  bool tokens() {
    const Values given = with_role(program_.inputs, "tokens");
    if (first_ && (given.size() != 1 || !given[0]->has_shape({1, length_}))) {
      return fail("no tokens, or of another shape", "tokens (1, " + std::to_string(length_) + ")");
    }
    return true;
  }

  bool bound() {
    for (const ValueSpec& value : program_.inputs) {
      if (value.role != "weight" && value.role != "table" && value.role != "state") {
        continue;
      }
      const auto name = stage_.bind.find(value.name);
      if (name == stage_.bind.end()) {
        return fail("nothing bound to " + value.name, "a tensor or slot under bind");
      }
      if (value.role == "state") {
        const auto slot = std::find_if(manifest_.slots.begin(), manifest_.slots.end(),
                                       [&](const SlotSpec& one) { return one.name == name->second; });
        if (slot == manifest_.slots.end() || slot->dtype != value.dtype || !value.has_shape(slot->shape)) {
          return fail("the state " + value.name, "a slot of its dtype and shape bound to it under bind");
        }
      } else if (manifest_.weights.empty()) {
        return fail("the weight " + value.name + " without a file of weights", "the manifest's member weights");
      } else if (value.role == "table" && !has_rows(value)) {
        return fail("the table " + value.name + " of another shape", "a row for each token, one after another");
      }
    }
    return true;
  }

  // Return whether the first size that is not 1 is the number of tokens; for one token, all sizes may be 1.
  bool has_rows(const ValueSpec& table) const {
    for (const Dimension& size : table.shape) {
      if (size.max != 1) {
        return size.max == int64_t{length_} || length_ == 1;
      }
    }
    return true;
  }

  // Every cache (groups, rows, width) has what the program adds to it, (1, groups, tokens, width), and the other way
  // round; a cache of one row may be a state, and the program gives the state after the last token.
  bool caches() {
    std::vector<std::string> taken, given;
    for (const ValueSpec* cache : with_role(program_.inputs, "cache")) {
      taken.push_back(cache->name);
      if (cache->shape.size() != 3 || cache->shape[1].max > int64_t{manifest_.generate->context}) {
        return fail("the cache " + cache->name + " of another shape", "(groups, rows, width), rows at most context");
      }
    }
    for (const ValueSpec* rows : with_role(program_.outputs, "cache_rows")) {
      given.push_back(rows->name);
      const auto cache = std::find_if(program_.inputs.begin(), program_.inputs.end(), [&](const ValueSpec& value) {
        return value.role == "cache" && value.name == rows->name;
      });
      const auto fits = [&](int64_t tokens) {
        return rows->has_shape({1, cache->shape[0].max, tokens, cache->shape[2].max});
      };
      if (cache == program_.inputs.end() || !(fits(length_) || (cache->shape[1].max == 1 && fits(1)))) {
        return fail("the rows " + rows->name + " of another shape",
                    "(1, groups, tokens, width) of the cache they go to");
      }
    }
    return taken == given || fail("caches without rows that are added", "as many rows as caches, in their order");
  }

  bool head() {
    if (!head_) {
      return !with_role(program_.outputs, "activation").empty() || fail("no activation", "at least one");
    }
    const Values in = with_role(program_.inputs, "activation");
    if (in.size() != 1 || in[0]->shape.size() != 2 || in[0]->shape[0].max != 1) {
      return fail("other activations than one (1, H)", "that of one token");
    }
    const Values logits = with_role(program_.outputs, "logits");
    if (logits.size() != 1 || logits[0]->shape.size() != 2 || logits[0]->shape[0].max != 1 ||
        logits[0]->shape[1].max < manifest_.vocab_size) {
      return fail("no logits, or for other tokens than the model's", "logits (1, V)");
    }
    return true;
  }

  const Manifest& manifest_;
  const StageSpec& stage_;
  const ProgramSpec& program_;
  const bool first_;
  const bool head_;
  const uint32_t length_;
  JsonProblems& problems_;
};

// Check that a stage takes the output of the previous stage, and has the same caches for every length.
void check_chain(const GenerateSpec& spec, size_t stage, uint32_t length, JsonProblems& problems) {
  const ProgramSpec& program = *spec.program(stage, length);
  const Values in = with_role(program.inputs, "activation");
  const Values given = with_role(spec.program(stage - 1, length)->outputs, "activation");
  const bool head = stage + 1 == spec.stages.size();
  const bool fits = head ? given.size() == 1 && given[0]->has_shape({1, int64_t{length}, in[0]->shape[1].max})
                         : std::equal(in.begin(), in.end(), given.begin(), given.end(),
                                      [](const ValueSpec* a, const ValueSpec* b) { return a->has_shape(sizes(*b)); });
  const Values caches = with_role(program.inputs, "cache");
  const Values others = with_role(spec.program(stage, spec.lengths.front())->inputs, "cache");
  const bool same =
      std::equal(caches.begin(), caches.end(), others.begin(), others.end(),
                 [](const ValueSpec* a, const ValueSpec* b) { return a->name == b->name && a->has_shape(sizes(*b)); });
  if (!fits || !same) {
    problems.add("generate, stage " + spec.stages[stage].name,
                 fits ? "other caches for " + std::to_string(length) + " tokens than for fewer"
                      : "activations of other shapes than " + spec.stages[stage - 1].name + " gives",
                 "the same");
  }
}

}  // namespace

const ProgramSpec* GenerateSpec::program(size_t stage, uint32_t length) const {
  for (const ProgramSpec& program : programs) {
    if (program.family == stages[stage].forward && (program.length == 0 || program.length == length)) {
      return &program;
    }
  }
  return nullptr;
}

void read_generate(const JsonNode& root, Manifest& manifest) {
  if (!root.has("generate")) {
    return;
  }
  const JsonNode node = root.member("generate");
  GenerateSpec& spec = manifest.generate.emplace();
  if (node.has("problem")) {
    spec.problem = node.member("problem").text();
    if (spec.problem.empty()) {
      node.member("problem").problem("a sentence");
    }
    return;
  }
  if (node.has("engine")) {
    spec.engine = node.member("engine").text();
  }
  spec.context = static_cast<uint32_t>(node.member("context").integer(1, kMostTokens));
  for (const JsonNode& length : node.member("lengths").items()) {
    const int64_t least = spec.lengths.empty() ? 1 : int64_t{spec.lengths.back()} + 1;
    spec.lengths.push_back(static_cast<uint32_t>(length.integer(least, kMostTokens)));
  }
  for (const JsonNode& token : node.member("stop_tokens").items()) {
    spec.stop_tokens.push_back(token.integer(0, INT32_MAX));
  }
  for (const JsonNode& program : node.member("programs").items()) {
    spec.programs.push_back(read_program(program));
  }
  for (const JsonNode& stage : node.member("stages").items()) {
    StageSpec read;
    read.name = stage.member("name").text();
    read.forward = stage.member("forward").text();
    for (const auto& [local, name] : stage.member("bind").entries()) {
      read.bind[local] = name.text();
    }
    spec.stages.push_back(std::move(read));
  }
}

void check_generate(const Manifest& manifest, JsonProblems& problems) {
  if (!manifest.generate || !manifest.generate->problem.empty()) {
    return;
  }
  const GenerateSpec& spec = *manifest.generate;
  if (spec.lengths.empty() || spec.stages.size() < 2) {
    problems.add("generate", "no lengths, or fewer than two stages", "lengths, and at least two stages");
    return;
  }
  if (spec.recomputes() && spec.lengths.back() != spec.context) {
    problems.add("generate.lengths", "no 1, and " + std::to_string(spec.lengths.back()) + " tokens at most",
                 "1 token, or as many as context");
  }
  std::set<std::string> names;
  for (const ProgramSpec& program : manifest.programs) {
    names.insert(program.name);
  }
  for (const ProgramSpec& program : spec.programs) {
    if (!names.insert(program.name).second || manifest.files.count(program.file) == 0) {
      problems.add("generate, program " + program.name, "a name that stands twice, or the file " + program.file,
                   "distinct names, and a file listed under files");
    }
  }
  for (size_t stage = 0; stage < spec.stages.size() && problems.status().ok(); ++stage) {
    const bool head = stage + 1 == spec.stages.size();
    for (uint32_t length : spec.lengths) {
      const ProgramSpec* program = spec.program(stage, length);
      if (program == nullptr || (program->length == 0) != head) {
        problems.add(
            "generate, stage " + spec.stages[stage].name,
            "no program of the family " + spec.stages[stage].forward + " for " + std::to_string(length) + " tokens",
            head ? "one without a length" : "one for each of lengths");
        return;
      }
      StageCheck(manifest, stage, *program, length, problems).run();
      if (!problems.status().ok()) {
        return;
      }
      if (stage > 0) {
        check_chain(spec, stage, length, problems);
      }
    }
  }
}

}  // namespace zoexport
