#include "session/manifest/stages.h"

#include <algorithm>
#include <set>

#include "session/manifest/roles.h"

namespace zoexport {
namespace {

constexpr int64_t kMostTokens = (1 << 30) - 1;

bool same_sizes(const std::vector<Dimension>& a, const std::vector<Dimension>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Dimension& x, const Dimension& y) { return x.min == y.min && x.max == y.max; });
}

bool same_shapes(const Values& a, const Values& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const ValueSpec* x, const ValueSpec* y) { return same_sizes(x->shape, y->shape); });
}

Dimension exactly(int64_t size) { return {size, size}; }

// Checks one program as one stage's; the first problem ends it.
class ProgramCheck {
 public:
  ProgramCheck(const Manifest& manifest, size_t stage, const ProgramSpec& program, Pass pass, JsonProblems& problems)
      : manifest_(manifest),
        stage_(manifest.stages[stage]),
        program_(program),
        whole_(manifest.whole()),
        first_(stage == 0),
        head_(stage + 1 == manifest.stages.size()),
        pass_(pass),
        backward_(pass == Pass::kBackward || pass == Pass::kFromSaved),
        where_((whole_ ? "" : "stage " + stage_.name + ", ") + "program " + program.name),
        problems_(problems) {}

  void run() {
    if (roles() && rows() && labels() && activations() && bound() && perturbs() && drops()) {
      if (backward_) {
        gradients();
      } else if (whole_ && pass_ == Pass::kForward) {
        steps();
      }
    }
  }

 private:
  bool fail(const std::string& found, const std::string& expected) {
    problems_.add(where_, found, expected);
    return false;
  }

  bool roles() {
    std::set<std::string> inputs = {"weight", "state"};
    std::set<std::string> outputs;
    inputs.insert(first_ ? "tokens" : "activation");
    if (!head_ && !whole_) {
      inputs.insert("dropout");
    }
    if (!head_ && manifest_.pad_token) {
      inputs.insert("tokens");  // that tell padding
    }
    if (head_) {
      inputs.insert("label_tokens");
      outputs = {"label_logprobs", "label_is_argmax"};
    }
    if (pass_ == Pass::kSaving && !head_) {
      outputs.insert("saved");
    } else if (pass_ == Pass::kFromSaved) {
      inputs.insert("saved");
    }
    if (backward_) {
      inputs.insert(head_ ? "label_weights" : "output_gradient");
      outputs.insert("state_gradient");
      if (!first_) {
        outputs.insert("input_gradient");
      }
    } else if (whole_ || (!head_ && stacked())) {
      inputs.insert({"epsilon", "seed", "step", "noise"});
    }
    if (whole_) {
      inputs.insert({"label_positions", "query", "sign", "projected_gradients", "learning_rate", "previous_noise"});
      outputs.insert("state");
    } else if (!backward_ && !head_) {
      outputs.insert("activation");
    }
    return allowed(program_.inputs, inputs) && allowed(program_.outputs, outputs);
  }

  // Return whether programs perturb and take the rows of all copies.
  bool stacked() const { return manifest_.copies > 1 && !whole_; }

  bool allowed(const std::vector<ValueSpec>& values, const std::set<std::string>& roles) {
    for (const ValueSpec& value : values) {
      if (roles.count(value.role) == 0) {
        return fail("the value " + value.name + " with the role " + value.role,
                    "a role of docs/formats.md for this stage");
      }
      const bool fixed =
          std::none_of(value.shape.begin(), value.shape.end(), [](const Dimension& size) { return size.dynamic(); });
      const bool scalar = scalar_dtype(value.role) >= 0;
      const bool labels = value.role.compare(0, 6, "label_") == 0;
      const bool ranges = whole_ && (labels || value.role == "tokens");
      const bool integer = value.role == "tokens" || value.role == "label_tokens" || value.role == "label_positions";
      const int32_t dtype = scalar ? scalar_dtype(value.role) : integer ? ZO_INT64 : ZO_FLOAT32;
      const bool any = value.role == "weight" || value.role == "state";  // that of what is bound to it
      if (!(fixed || ranges) || (!any && value.dtype != dtype) || (scalar && !value.has_shape({1}))) {
        return fail("another dtype or a range of sizes of " + value.name,
                    "the dtype of docs/formats.md, and fixed sizes");
      }
    }
    return true;
  }

  bool one(const std::vector<ValueSpec>& values, const char* role, const std::vector<Dimension>& shape) {
    const Values found = with_role(values, role);
    if (found.size() == 1 && same_sizes(found[0]->shape, shape)) {
      return true;
    }
    std::string text;
    for (const Dimension& size : shape) {
      text += (text.empty() ? "(" : ", ") + std::to_string(size.min);
      text += size.dynamic() ? " to " + std::to_string(size.max) : "";
    }
    return fail("no value with the role " + std::string(role) + ", several, or another shape", "one of " + text + ")");
  }

  bool rows() {
    const ValueSpec* tokens = program_.input("tokens");
    if (tokens == nullptr && !first_) {
      return true;
    }
    Dimension length = exactly(program_.length);
    if (whole_) {
      length = tokens != nullptr && tokens->shape.size() == 2 ? tokens->shape[1] : exactly(manifest_.max_length);
      const auto& lengths = manifest_.lengths;
      if (!lengths.empty() && (length.min != lengths.front() || length.max != lengths.back())) {
        return fail("tokens of other lengths than the manifest's", "from the first of lengths to the last");
      }
      length.max = manifest_.max_length;
    }
    return one(program_.inputs, "tokens", {exactly(manifest_.rows), length});
  }

  bool labels() {
    if (!head_) {
      return true;
    }
    if (!whole_) {
      const std::vector<Dimension> entries = {exactly(manifest_.label_rows)};
      return one(program_.inputs, "label_tokens", entries) && one(program_.outputs, "label_logprobs", entries) &&
             one(program_.outputs, "label_is_argmax", entries) &&
             (!backward_ || one(program_.inputs, "label_weights", entries));
    }
    const ValueSpec* positions = program_.input("label_positions");
    const bool any = positions != nullptr && !positions->shape.empty();
    const Dimension entries = {any ? positions->shape[0].min : 1, manifest_.max_labels};
    const bool evaluates = pass_ == Pass::kEvaluate;
    const Dimension copies = exactly(evaluates && stage_.evaluate != stage_.forward ? 1 : manifest_.copies);
    return one(program_.inputs, "label_positions", {entries}) && one(program_.inputs, "label_tokens", {entries}) &&
           one(program_.outputs, "label_logprobs", {copies, entries}) &&
           ((!evaluates && program_.output("label_is_argmax") == nullptr) ||
            one(program_.outputs, "label_is_argmax", {copies, entries}));
  }

  bool activations() {
    const Values in = with_role(program_.inputs, "activation");
    const Values out = with_role(program_.outputs, "activation");
    if (whole_) {
      return true;
    }
    if (head_ && (in.size() != 1 || in[0]->shape.size() != 2 || in[0]->shape[0].max != manifest_.label_rows)) {
      return fail("other activations than one (label_rows, H)", "one, of the chosen rows");
    }
    if ((!first_ && in.empty()) || (!backward_ && !head_ && out.empty())) {
      return fail("no activation", "at least one in and out");
    }
    if (backward_ && !same_shapes(with_role(program_.outputs, "input_gradient"), in)) {
      return fail("input_gradient outputs of other shapes", "one for each activation input, in order");
    }
    return true;
  }

  const SlotSpec* slot(const ValueSpec& value) const {
    const auto name = stage_.bind.find(value.name);
    for (const SlotSpec& candidate : manifest_.slots) {
      if (name != stage_.bind.end() && candidate.name == name->second) {
        return &candidate;
      }
    }
    return nullptr;
  }

  bool bound() {
    for (const auto* values : {&program_.inputs, &program_.outputs}) {
      std::set<std::string> slots;
      for (const ValueSpec& value : *values) {
        if (value.role == "weight" && stage_.bind.count(value.name) == 0) {
          return fail("no tensor bound to the weight " + value.name, "one under bind");
        }
        if (value.role != "state") {
          continue;
        }
        const SlotSpec* found = slot(value);
        if (found == nullptr || value.dtype != found->dtype || !value.has_shape(found->shape)) {
          return fail("the state " + value.name, whole_ ? "a slot of that name, dtype and shape under state"
                                                        : "a slot of its dtype and shape bound to it under bind");
        }
        if (!slots.insert(found->name).second) {
          return fail("two values bound to the slot " + found->name, "one");
        }
      }
    }
    return true;
  }

  // If programs perturb, check that one that reads a trainable slot gets epsilon and the direction.
  bool perturbs() {
    std::set<std::string> given, wanted;
    for (const ValueSpec& value : program_.inputs) {
      if (is_noise(value)) {
        if (!fits_noise(manifest_, value) || (stacked() && value.shape[0].max != int64_t{manifest_.queries()})) {
          return fail("the input " + value.name + " of another name, dtype or shape",
                      value.role + ".SLOT, float32 (queries, *SLOT)");
        }
        given.insert(noise_slot(value));
      } else if (stacked() && value.role == "state" && slot(value)->role == "trainable") {
        wanted.insert(slot(value)->name);
      }
    }
    if (wanted.empty()) {
      return true;
    }
    if (head_) {
      return fail("a head that reads the trainable slot " + *wanted.begin(),
                  "stages before it that do, as a head perturbs nothing");
    }
    const bool makes = program_.input("seed") != nullptr && program_.input("step") != nullptr;
    const bool has = makes || std::includes(given.begin(), given.end(), wanted.begin(), wanted.end());
    if (program_.input("epsilon") == nullptr || !has) {
      return fail("the trainable slot " + *wanted.begin() + " without what perturbs it",
                  "the roles epsilon, and seed and step, or noise of each trainable slot that it reads");
    }
    return true;
  }

  // Check that dropout masks have the size of the adapter's inputs, in every row and position.
  bool drops() {
    for (const ValueSpec& value : program_.inputs) {
      if (!is_dropout(value)) {
        continue;
      }
      const auto named = [&](const std::string& prefix) -> const SlotSpec* {
        ValueSpec matrix;
        matrix.name = prefix + dropout_slot(value).substr(std::min(dropout_slot(value).size(), prefix.size()));
        return slot(matrix);
      };
      const SlotSpec* first = named("lora_A.");
      const SlotSpec* second = named("lora_B.");
      const bool fits = first != nullptr && second != nullptr && first->shape.size() == 2 &&
                        value.name == value.role + ".lora_B." + dropout_slot(value).substr(7) &&
                        value.has_shape({manifest_.rows, program_.length, first->shape[0]});
      if (!fits) {
        return fail("the input " + value.name + " of another name or shape",
                    "dropout.lora_B.MODULE, (rows, length, inputs of the module)");
      }
    }
    return true;
  }

  // A backward program returns the gradient of each trainable slot that its forward program reads, and of nothing else.
  // It need not read the slot itself.
  void gradients() {
    std::multiset<std::string> expected, found;
    for (const ValueSpec& value : manifest_.program(stage_.forward, program_.length)->inputs) {
      if (value.role == "state" && slot(value)->role == "trainable") {
        expected.insert(value.name);
      }
    }
    for (const ValueSpec& value : program_.outputs) {
      if (value.role == "state_gradient") {
        found.insert(value.name);
        const SlotSpec* of = slot(value);
        if (of == nullptr || !value.has_shape(of->shape)) {
          fail("the state gradient " + value.name, "one of its slot's shape");
          return;
        }
      }
    }
    if (expected != found) {
      fail("state gradients for other slots than the trainable ones it reads",
           "one for each trainable slot that " + stage_.forward + " reads");
    }
  }

  // Check that the step program of a whole model perturbs and updates its slots.
  void steps() {
    // The program makes the noise itself, or takes that of two steps.
    const bool takes_noise = program_.input("noise") != nullptr;
    for (const char* role : {takes_noise ? "noise" : "seed", takes_noise ? "previous_noise" : "step",
                             "projected_gradients", "learning_rate", "epsilon"}) {
      if (program_.input(role) == nullptr) {
        fail("no input with the role " + std::string(role), "the inputs of a zeroth-order method");
        return;
      }
    }
    if (!one(program_.inputs, "projected_gradients", {exactly(manifest_.queries())})) {
      return;
    }
    const bool sequential = program_.input("sign") != nullptr;
    if (sequential && !takes_noise && program_.input("query") == nullptr) {
      fail("the role sign without the role query", "both");
    } else if (sequential != (manifest_.step.copies == Copies::kOne)) {
      fail(sequential ? "the role sign, and several copies in a call" : "one copy in a call, and no role sign",
           "the role sign where a call has one copy, and nowhere else");
    }
    for (const SlotSpec& slot : manifest_.slots) {
      const auto names = [&](const std::vector<ValueSpec>& values) {
        return std::any_of(values.begin(), values.end(),
                           [&](const ValueSpec& value) { return value.role == "state" && value.name == slot.name; });
      };
      if (slot.role == "trainable" && !(names(program_.inputs) && names(program_.outputs))) {
        fail("no input or no output for the trainable slot " + slot.name, "both");
      } else if (slot.role != "trainable" && names(program_.outputs)) {
        fail("an output for the " + slot.role + " slot " + slot.name, "outputs for trainable slots only");
      }
    }
  }

  const Manifest& manifest_;
  const StageSpec& stage_;
  const ProgramSpec& program_;
  const bool whole_;
  const bool first_;
  const bool head_;
  const Pass pass_;
  const bool backward_;
  const std::string where_;
  JsonProblems& problems_;
};

// Check that stage `index` takes the previous stage's output, and its backward the gradients of its own output.
void check_chain(const Manifest& manifest, size_t index, uint32_t length, JsonProblems& problems) {
  const StageSpec& stage = manifest.stages[index];
  const bool head = index + 1 == manifest.stages.size();
  const ProgramSpec& forward = *manifest.program(stage.forward, length);
  const Values in = with_role(forward.inputs, "activation");
  const std::string where = "stage " + stage.name;
  if (index > 0) {
    const ProgramSpec& before = *manifest.program(manifest.stages[index - 1].forward, length);
    const Values given = with_role(before.outputs, "activation");
    // The head takes rows of what the others pass on as (rows, length, H).
    const bool fits = head ? given.size() == 1 && given[0]->has_shape({manifest.rows, length, in[0]->shape[1].max})
                           : same_shapes(given, in);
    if (!fits) {
      problems.add(where, "activations of other shapes than " + manifest.stages[index - 1].name + " gives", "the same");
    }
  }
  const Values out = with_role(forward.outputs, "activation");
  for (const std::string& family : {stage.backward, stage.from_saved}) {
    const ProgramSpec* backward = family.empty() ? nullptr : manifest.program(family, length);
    if (backward != nullptr && !(same_shapes(with_role(backward->inputs, "activation"), in) &&
                                 same_shapes(with_role(backward->inputs, "output_gradient"), out))) {
      problems.add(where, "a backward program of other activations than its forward's", "the same shapes");
    }
  }
  if (!stage.saving.empty()) {
    const ProgramSpec& saving = *manifest.program(stage.saving, length);
    const ProgramSpec& from_saved = *manifest.program(stage.from_saved, length);
    if (!same_shapes(with_role(saving.inputs, "activation"), in) ||
        !same_shapes(with_role(saving.outputs, "activation"), out) ||
        !same_shapes(with_role(saving.outputs, "saved"), with_role(from_saved.inputs, "saved"))) {
      problems.add(where, "programs " + saving.name + " and " + from_saved.name + " that do not fit",
                   "the activations of the forward program, and the same saved results given and taken");
    }
  }
}

void read_padding(const JsonNode& root, Manifest& manifest) {
  if (!root.has("bidirectional")) {
    return;
  }
  const JsonNode node = root.member("bidirectional");
  manifest.pad_token = node.member("pad_token").integer(0, kMostTokens);
  if (!root.has("stages")) {
    node.problem("stages, whose programs tell padding by their tokens");
  } else if (manifest.vocab_size != 0 && *manifest.pad_token >= manifest.vocab_size) {
    node.member("pad_token").problem("a token below model.vocab_size");
  }
}

// Reads the list of stages, and what only programs of single stages need.
void read_list(const JsonNode& root, Manifest& manifest) {
  for (const JsonNode& node : root.member("stages").items()) {
    StageSpec stage;
    stage.name = node.member("name").text();
    stage.forward = stage.evaluate = node.member("forward").text();
    const auto family = [&](const char* key) { return node.has(key) ? node.member(key).text() : std::string(); };
    stage.backward = family("backward");
    stage.saving = family("saving");
    stage.from_saved = family("from_saved");
    if (stage.saving.empty() != stage.from_saved.empty() || (stage.backward.empty() && !stage.saving.empty())) {
      node.problem("saving and from_saved both, beside backward, or neither");
    }
    for (const auto& [local, name] : node.member("bind").entries()) {
      stage.bind[local] = name.text();
    }
    manifest.stages.push_back(std::move(stage));
  }
  if (manifest.stages.size() < 2) {
    root.member("stages").problem("at least two stages: the first takes tokens, the last scores labels");
  }
  if (manifest.lengths.empty()) {
    root.member("lengths").problem("at least one length");
    return;
  }
  manifest.label_rows = static_cast<uint32_t>(root.member("label_rows").integer(1, 1 << 20));
  if (manifest.rows % manifest.copies != 0) {
    root.member("rows").problem("a multiple of copies");
  }
}

// The stage of a whole model: its programs name tensors and slots as the bundle does.
void make_whole(Manifest& manifest) {
  StageSpec stage;
  stage.name = "model";
  stage.forward = "train";
  stage.evaluate = manifest.program("evaluate") == nullptr ? stage.forward : "evaluate";
  for (ProgramSpec& program : manifest.programs) {
    program.family = program.name;
    for (const auto* values : {&program.inputs, &program.outputs}) {
      for (const ValueSpec& value : *values) {
        if (value.role == "weight" || value.role == "state") {
          stage.bind[value.name] = value.name;
        }
      }
    }
  }
  manifest.stages.push_back(std::move(stage));
}

uint32_t longest_row(const Manifest& manifest) {
  if (!manifest.lengths.empty()) {
    return manifest.lengths.back();
  }
  const ProgramSpec* program = manifest.program(manifest.stages.back().evaluate);
  const ValueSpec* tokens = program == nullptr ? nullptr : program->input("tokens");
  return tokens == nullptr || tokens->shape.empty() ? 0 : static_cast<uint32_t>(tokens->shape.back().max);
}

// Checks a stage's programs of a family for rows of a length.
void check_pass(const Manifest& manifest, size_t index, Pass pass, uint32_t length, JsonProblems& problems) {
  const StageSpec& stage = manifest.stages[index];
  const std::string& family = stage.family(pass);
  const bool head = index + 1 == manifest.stages.size();
  const ProgramSpec* program = manifest.program(family, length);
  if (program == nullptr && manifest.whole()) {
    problems.add("programs", "no program named " + family, "one");
  } else if (program == nullptr || (program->length == 0) != head) {
    problems.add("stage " + stage.name,
                 "no program of the family " + family + (head ? "" : " for rows of " + std::to_string(length)),
                 head ? "one without a length" : "one for each of lengths");
  } else {
    ProgramCheck(manifest, index, *program, pass, problems).run();
  }
}

}  // namespace

void read_stages(const JsonNode& root, Manifest& manifest) {
  read_padding(root, manifest);
  if (root.has("stages")) {
    read_list(root, manifest);
  } else {
    make_whole(manifest);
  }
  manifest.max_length = longest_row(manifest);
  const auto& programs = manifest.programs;
  const bool reads = std::any_of(programs.begin(), programs.end(),
                                 [](const ProgramSpec& program) { return program.input("weight") != nullptr; });
  if (manifest.weights.empty() && reads) {
    root.member("weights").problem("the file of the frozen weights, as there are inputs with the role weight");
  }
}

void check_stages(const Manifest& manifest, JsonProblems& problems) {
  for (const SlotSpec& slot : manifest.slots) {
    if (!manifest.whole() && manifest.copies == 1 && slot.role == "trainable" && slot.dtype == ZO_FLOAT16) {
      problems.add("state", "the trainable float16 slot " + slot.name + " with copies 1",
                   "float32, or 2 * settings.num_queries copies, which programs perturb");
    }
  }
  const std::vector<uint32_t> any_length = {manifest.max_length};
  for (size_t i = 0; i < manifest.stages.size(); ++i) {
    const StageSpec& stage = manifest.stages[i];
    for (uint32_t length : manifest.whole() ? any_length : manifest.lengths) {
      for (const Pass pass : {Pass::kEvaluate, Pass::kForward, Pass::kBackward, Pass::kSaving, Pass::kFromSaved}) {
        // If a whole model runs one program for both passes, it is checked for both.
        const bool known = pass != Pass::kForward || stage.forward != stage.evaluate || manifest.whole();
        if (known && !stage.family(pass).empty()) {
          check_pass(manifest, i, pass, length, problems);
        }
        if (!problems.status().ok()) {
          return;
        }
      }
      check_chain(manifest, i, length, problems);
    }
  }
}

}  // namespace zoexport
