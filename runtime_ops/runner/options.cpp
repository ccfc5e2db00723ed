#include "runner/options.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "job/calls.h"

namespace zoexport::runner {
namespace {

using nlohmann::json;

const char* const kVerbs = "train, eval, generate, export, unpack or inspect";

Failure bad(const std::string& option, const std::string& found, const std::string& expected) {
  return {ZO_INVALID_ARGUMENT, "option " + option, found, expected, "Run zoexport-runner --help."};
}

// An option of one of the session's calls.
struct Target {
  json Options::* kind;
  const char* key;
};

const std::map<std::string, std::string Options::*>& paths() {
  static const std::map<std::string, std::string Options::*> table = {
      {"--bundle", &Options::bundle},       {"--examples", &Options::examples},
      {"--data", &Options::data},           {"--eval-examples", &Options::eval_examples},
      {"--eval-data", &Options::eval_data}, {"--state", &Options::state},
      {"--output", &Options::output},       {"-o", &Options::output},
      {"--file", &Options::file},           {"--adapter", &Options::adapter},
  };
  return table;
}

const std::map<std::string, Target>& texts() {
  static const std::map<std::string, Target> table = {
      {"--engine", {&Options::open, "engine"}},
      {"--keep", {&Options::train, "keep"}},
      {"--format", {&Options::write, "format"}},
      {"--outtype", {&Options::write, "outtype"}},
  };
  return table;
}

const std::map<std::string, Target>& numbers() {
  static const std::map<std::string, Target> table = {
      {"--threads", {&Options::open, "threads"}},
      {"--steps", {&Options::train, "steps"}},
      {"--eval-every", {&Options::train, "eval_every"}},
      {"--patience", {&Options::train, "patience"}},
      {"--max-new-tokens", {&Options::generate, "max_new_tokens"}},
      {"--temperature", {&Options::generate, "temperature"}},
      {"--top-k", {&Options::generate, "top_k"}},
      {"--top-p", {&Options::generate, "top_p"}},
      {"--min-p", {&Options::generate, "min_p"}},
      {"--repetition-penalty", {&Options::generate, "repetition_penalty"}},
  };
  return table;
}

const std::map<std::string, Target>& switches() {
  static const std::map<std::string, Target> table = {
      {"--recover", {&Options::attach, "recover"}}, {"--change-settings", {&Options::attach, "change_settings"}},
      {"--last", {&Options::attach, "last"}},       {"--sliding", {&Options::generate, "sliding"}},
      {"--force", {&Options::write, "replace"}},
  };
  return table;
}

// A number, a boolean or another value of JSON, or else a text.
json value_of(const std::string& text) {
  json parsed = json::parse(text, nullptr, false);
  return parsed.is_discarded() ? json(text) : parsed;
}

// A key as it is, or the file that contains it; the session checks it.
std::string key_of(const std::string& text) {
  std::string keys = text;
  if (std::FILE* file = std::fopen(text.c_str(), "re")) {
    char content[8192];
    keys.assign(content, std::fread(content, 1, sizeof(content), file));
    std::fclose(file);
  }
  return keys;
}

Status take(Options& options, const std::string& name, const std::string& text) {
  if (const auto path = paths().find(name); path != paths().end()) {
    options.*(path->second) = text;
  } else if (const auto word = texts().find(name); word != texts().end()) {
    (options.*(word->second.kind))[word->second.key] = text;
  } else if (const auto number = numbers().find(name); number != numbers().end()) {
    const json value = value_of(text);
    if (!value.is_number()) {
      return bad(name, "'" + text + "'", "a number");
    }
    (options.*(number->second.kind))[number->second.key] = value;
  } else if (name == "--seed") {
    const json value = value_of(text);
    if (!value.is_number_unsigned()) {
      return bad(name, "'" + text + "'", "a whole number of at least 0");
    }
    options.seed = value.get<uint64_t>();
  } else if (name == "--set") {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return bad(name, "'" + text + "'", "KEY=VALUE, such as learning_rate=1e-3");
    }
    options.settings[text.substr(0, equals)] = value_of(text.substr(equals + 1));
  } else if (name == "--cache") {
    if (text.empty()) {
      return bad(name, "nothing", "a folder, or none");
    }
    options.open["cache"] = text == "none" ? "" : text;
  } else if (name == "--trust") {
    options.open["trusted_keys"].push_back(key_of(text));
  } else if (name == "--prompt") {
    options.prompt = text;
  } else {
    options.generate["stop"].push_back(text);
  }
  return {};
}

bool takes_value(const std::string& name) {
  const auto others = {"--seed", "--set", "--cache", "--trust", "--prompt", "--stop"};
  return paths().count(name) + texts().count(name) + numbers().count(name) > 0 ||
         std::find(others.begin(), others.end(), name) != others.end();
}

// Take an option without a value; return whether it is one.
bool take_flag(Options& options, const std::string& name) {
  if (const auto found = switches().find(name); found != switches().end()) {
    (options.*(found->second.kind))[found->second.key] = true;
  } else if (name == "--skip-hashes") {
    options.open["verify"] = false;
  } else if (name == "--json" || name == "--timings" || name == "--chat") {
    (name == "--json" ? options.json : name == "--chat" ? options.chat : options.timings) = true;
    options.open["kernel_times"] = options.timings;
  } else {
    return false;
  }
  return true;
}

Status check_required(const Options& options) {
  if (options.bundle.empty()) {
    return bad("--bundle", "nothing", "a bundle's folder");
  }
  if (options.takes_examples() && options.examples.empty() == options.data.empty()) {
    return bad("--data", options.data.empty() ? "nothing" : "--examples too",
               "a data file, or --examples and a file of tokenized examples");
  }
  if (options.verb == "generate" && options.prompt.has_value() == !options.data.empty()) {
    return bad("--prompt", options.prompt ? "--data too" : "nothing",
               "the text that is to be continued, or --data and a file of prompts");
  }
  if (options.verb == "unpack" && options.file.empty()) {
    return bad("--file", "nothing", "a file that zoexport pack made");
  }
  if (options.verb == "export" && options.output.empty()) {
    return bad("--output", "nothing", "the folder or file to write");
  }
  if (!options.adapter.empty() && !options.state.empty()) {
    return bad("--adapter", "a state too", "one of them");
  }
  if (options.validates() &&
      (options.verb != "train" || !options.eval_examples.empty() == !options.eval_data.empty())) {
    return bad("--eval-data", options.verb == "train" ? "--eval-examples too" : "the verb " + options.verb,
               "train, with one of them");
  }
  if (options.verb == "train" && options.state.empty()) {
    return bad("--state", "nothing", "a folder for the state");
  }
  if (options.verb == "train" && !options.train.contains("steps")) {
    return bad("--steps", "nothing", "the number of steps in total");
  }
  // Before a bundle is opened.
  const auto check = [](const char* kind, const json& given) {
    return call(zo_options_check, kind, given.dump().c_str());
  };
  ZO_TRY(check("open", options.open));
  ZO_TRY(check("settings", options.settings));
  ZO_TRY(check("train", options.train));
  ZO_TRY(check("generate", options.generate));
  return check("export", options.write);
}

}  // namespace

const char* const kUsage =
    "zoexport-runner train   --bundle DIR (--data FILE | --examples FILE) --state DIR --steps N [options]\n"
    "zoexport-runner eval    --bundle DIR (--data FILE | --examples FILE) [--state DIR] [options]\n"
    "zoexport-runner generate --bundle DIR [--state DIR | --adapter DIR] (--prompt TEXT | --data FILE) [options]\n"
    "zoexport-runner export  --bundle DIR [--state DIR] [--format peft|gguf] --output PATH [options]\n"
    "zoexport-runner unpack  --file FILE --bundle DIR [--force] [--trust KEY] [--json]\n"
    "zoexport-runner inspect --bundle DIR [--state DIR] [options]\n"
    "\n"
    "Trains, evaluates, generates from or describes a zoexport bundle, writes its adapter, or unpacks it.\n"
    "--data is JSON Lines of texts, prompts with completions, choices, conversations or pairs of responses; --examples "
    "is\n"
    "tokenized, one JSON object per line. For generate, --data is JSON Lines of {\"prompt\"} or {\"messages\"}, and "
    "each\n"
    "result is one line of JSON. --steps is the total: a state that has 30 of 100 steps takes 70 more.\n"
    "\n"
    "  --set KEY=VALUE   setting of the run, such as learning_rate=1e-3 (zoexport methods lists them); repeatable. "
    "Default: the\n"
    "                    state's, or the bundle's\n"
    "  --seed N          seed of a new state, or of the sampling\n"
    "  --eval-data FILE | --eval-examples FILE  validation examples, evaluated during training\n"
    "  --eval-every N --patience N --keep best|last     steps between evaluations (a tenth of all); evaluations "
    "without a\n"
    "                    lower loss that end training; weights that export, eval and generate use (best)\n"
    "  --last            use the weights of the last step\n"
    "  --max-new-tokens N --temperature X --top-k N --top-p X --min-p X --repetition-penalty X\n"
    "  --stop TEXT       end the text before TEXT; repeatable\n"
    "  --chat            treat the prompt as a user's message, and apply the model's chat template\n"
    "  --sliding         continue past the bundle's context over the last part of the text\n"
    "  --format peft|gguf --outtype f32|f16|q8_0     adapter for PEFT or llama.cpp; dtype of a GGUF file\n"
    "  --force           replace what export or unpack would write over\n"
    "  --threads N       default: chosen by the engine\n"
    "  --engine NAME     engine or fallback of the bundle; executorch is the CPU of one for android-gpu\n"
    "  --cache DIR|none  folder of a GPU's shaders; default: zoexport/shaders in the user's cache folder\n"
    "  --recover         continue from the last good record of a damaged log; a copy of it is kept\n"
    "  --change-settings continue with other settings or examples than the state's\n"
    "  --trust KEY       refuse bundles that no holder of KEY signed: a .pub file, or its line; repeatable\n"
    "  --skip-hashes     check the sizes of the bundle's files only\n"
    "  --json            print one JSON object on standard output\n"
    "  --timings         print one JSON object per step before it: seconds, memory, cost of each program and GPU "
    "kernel so\n"
    "                    far; also seconds of opening the bundle, for train and eval\n";

Result<Options> parse_options(int count, const char* const* arguments) {
  Options options;
  if (count < 2) {
    return bad("VERB", "nothing", kVerbs);
  }
  options.verb = arguments[1];
  const auto verbs = {"train", "eval", "generate", "export", "unpack", "inspect"};
  if (std::find(verbs.begin(), verbs.end(), options.verb) == verbs.end()) {
    return bad("VERB", "'" + options.verb + "'", kVerbs);
  }
  for (int i = 2; i < count; ++i) {
    const std::string name = arguments[i];
    if (take_flag(options, name)) {
      continue;
    }
    if (!takes_value(name)) {
      return bad(name, "no such option", "one of those that --help lists");
    }
    if (i + 1 == count) {
      return bad(name, "nothing after it", "a value");
    }
    ZO_TRY(take(options, name, arguments[++i]));
  }
  ZO_TRY(check_required(options));
  return options;
}

}  // namespace zoexport::runner
