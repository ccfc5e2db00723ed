#include "runner/options.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>

#include "session/manifest/manifest.h"

namespace zoexport::runner {
namespace {

const char* const kVerbs = "train, eval, generate, export, unpack or inspect";

using Setter = std::function<Status(Options&, const std::string&)>;

Failure bad(const std::string& option, const std::string& found, const std::string& expected) {
  return {ZO_INVALID_ARGUMENT, "option " + option, found, expected, "Run zoexport-runner --help."};
}

template <typename T, typename Target>
Setter whole(const std::string& option, Target Options::* target, uint64_t least) {
  return [=](Options& options, const std::string& text) -> Status {
    errno = 0;
    char* end = nullptr;
    const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || errno != 0 || value < least || value > std::numeric_limits<T>::max()) {
      return bad(option, "'" + text + "'", "a whole number of at least " + std::to_string(least));
    }
    options.*target = static_cast<T>(value);
    return {};
  };
}

template <typename Target>
Setter number(const std::string& option, Target Options::* target, bool or_zero = false) {
  return [=](Options& options, const std::string& text) -> Status {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(value) || value < 0 || (value == 0 && !or_zero)) {
      return bad(option, "'" + text + "'", or_zero ? "a number of at least 0" : "a number above 0");
    }
    options.*target = value;
    return {};
  };
}

template <typename Target>
Setter word(const std::string& option, Target Options::* target, int32_t (*parse)(const std::string&),
            const std::string& expected) {
  return [=](Options& options, const std::string& text) -> Status {
    const int32_t value = parse(text);
    if (value < 0) {
      return bad(option, "'" + text + "'", expected);
    }
    options.*target = value;
    return {};
  };
}

Setter path(std::string Options::* target) {
  return [=](Options& options, const std::string& text) -> Status {
    options.*target = text;
    return {};
  };
}

int32_t format_from_text(const std::string& text) {
  return text == "peft" ? ZO_ADAPTER_PEFT : text == "gguf" ? ZO_ADAPTER_GGUF : -1;
}

int32_t outtype_from_text(const std::string& text) {
  return text == "f32" ? ZO_OUTTYPE_F32 : text == "f16" ? ZO_OUTTYPE_F16 : text == "q8_0" ? ZO_OUTTYPE_Q8_0 : -1;
}

int32_t keep_from_text(const std::string& text) {
  return text == "best" ? ZO_KEEP_BEST : text == "last" ? ZO_KEEP_LAST : -1;
}

Status set_cache(Options& options, const std::string& text) {
  if (text.empty()) {
    return bad("--cache", "nothing", "a folder, or none");
  }
  options.cache = text == "none" ? "" : text;
  return {};
}

// A key as it is, or the file that has it; whether it is one is for the session to say.
Status add_trusted(Options& options, const std::string& text) {
  std::string keys = text;
  if (std::FILE* file = std::fopen(text.c_str(), "re")) {
    char content[8192];
    keys.assign(content, std::fread(content, 1, sizeof(content), file));
    std::fclose(file);
  }
  options.trusted = options.trusted.value_or("") + keys + "\n";
  return {};
}

Status prompt(Options& options, const std::string& text) {
  options.prompt = text;
  return {};
}

Status add_stop(Options& options, const std::string& text) {
  options.stops.push_back(text);
  return {};
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> table = {
      {"--bundle", path(&Options::bundle)},
      {"--examples", path(&Options::examples)},
      {"--data", path(&Options::data)},
      {"--file", path(&Options::file)},
      {"--eval-examples", path(&Options::eval_examples)},
      {"--eval-data", path(&Options::eval_data)},
      {"--eval-every", whole<uint32_t>("--eval-every", &Options::eval_every, 1)},
      {"--patience", whole<uint32_t>("--patience", &Options::patience, 1)},
      {"--keep", word("--keep", &Options::keep, keep_from_text, "best or last")},
      {"--state", path(&Options::state)},
      {"--engine", path(&Options::engine)},
      {"--cache", set_cache},
      {"--trust", add_trusted},
      {"--steps", whole<uint64_t>("--steps", &Options::steps, 1)},
      {"--threads", whole<uint32_t>("--threads", &Options::threads, 1)},
      {"--lr", number("--lr", &Options::lr)},
      {"--eps", number("--eps", &Options::eps)},
      {"--seed", whole<uint64_t>("--seed", &Options::seed, 0)},
      {"--batch", whole<uint32_t>("--batch", &Options::batch, 1)},
      {"--accumulate", whole<uint32_t>("--accumulate", &Options::accumulate, 1)},
      {"--momentum", number("--momentum", &Options::momentum, true)},
      {"--weight-decay", number("--weight-decay", &Options::weight_decay, true)},
      {"--clip", number("--clip", &Options::clip, true)},
      {"--checkpoint-every", whole<uint32_t>("--checkpoint-every", &Options::checkpoint_every, 1)},
      {"--keep-mb", whole<uint32_t>("--keep-mb", &Options::keep_mb, 0)},
      {"--cache-prefix-mb", whole<uint32_t>("--cache-prefix-mb", &Options::cache_prefix_mb, 0)},
      {"--warmup", whole<uint32_t>("--warmup", &Options::warmup, 0)},
      {"--output", path(&Options::output)},
      {"-o", path(&Options::output)},
      {"--format", word("--format", &Options::format, format_from_text, "peft or gguf")},
      {"--outtype", word("--outtype", &Options::outtype, outtype_from_text, "f32, f16 or q8_0")},
      {"--schedule", word("--schedule", &Options::schedule, schedule_from_text, "constant, linear or cosine")},
      {"--loss", word("--loss", &Options::loss, loss_from_text, kLosses)},
      {"--dpo-beta", number("--dpo-beta", &Options::dpo_beta)},
      {"--choices", word("--choices", &Options::choices, choice_score_from_text, kChoiceScores)},
      {"--pack", word("--pack", &Options::pack, switch_from_text, "on or off")},
      {"--orpo-beta", number("--orpo-beta", &Options::orpo_beta)},
      {"--difference", word("--difference", &Options::difference, difference_from_text, "central or forward")},
      {"--prompt", prompt},
      {"--adapter", path(&Options::adapter)},
      {"--stop", add_stop},
      {"--max-tokens", whole<uint32_t>("--max-tokens", &Options::max_tokens, 1)},
      {"--top-k", whole<uint32_t>("--top-k", &Options::top_k, 0)},
      {"--temperature", number("--temperature", &Options::temperature, true)},
      {"--top-p", number("--top-p", &Options::top_p)},
      {"--min-p", number("--min-p", &Options::min_p, true)},
      {"--repetition-penalty", number("--repetition-penalty", &Options::repetition_penalty)},
  };
  return table;
}

const std::map<std::string, bool Options::*>& flags() {
  static const std::map<std::string, bool Options::*> table = {
      {"--json", &Options::json},       {"--last", &Options::last},
      {"--timings", &Options::timings}, {"--skip-hashes", &Options::skip_hashes},
      {"--recover", &Options::recover}, {"--change-settings", &Options::change_settings},
      {"--chat", &Options::chat},       {"--sliding", &Options::sliding},
      {"--force", &Options::force},
  };
  return table;
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
  if (options.verb == "train" && options.steps == 0) {
    return bad("--steps", "nothing", "the number of steps in total");
  }
  return {};
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
    "Trains, evaluates, asks or describes a zoexport bundle, writes its adapter, or makes its folder of a packed file. "
    "--data is JSON Lines of texts, "
    "prompts with completions,\n"
    "choices, conversations or pairs of answers; --examples is tokenized, one JSON object a line.\n"
    "Of generate, --data is JSON Lines of {\"prompt\"} or {\"messages\"}, and each result one line of JSON.\n"
    "--steps is the total: a state that has 30 of 100 steps takes 70 more.\n"
    "\n"
    "  --lr X --eps X --seed N --batch N --accumulate N     default: the bundle's settings\n"
    "  --momentum X --weight-decay X --clip X --checkpoint-every N --keep-mb N     the same, of a first-order method\n"
    "  --cache-prefix-mb N                room for rows as they leave the layers below the first that is trained\n"
    "  --schedule constant|linear|cosine  --warmup N\n"
    "  --loss full|choices|dpo|orpo --dpo-beta X --orpo-beta X     the last two losses are of pairs of answers\n"
    "  --choices sum|mean --pack on|off     what choices are compared by; whether texts share rows\n"
    "  --difference central|forward     the same, of a zeroth-order method\n"
    "  --eval-data FILE | --eval-examples FILE  of train: held-out examples to evaluate on meanwhile\n"
    "  --eval-every N --patience N --keep best|last     steps between evaluations (a tenth of all); evaluations "
    "without a "
    "lower loss\n"
    "                    after which training ends; whose values export, eval and generate take: the best's\n"
    "  --last            take those of the last step\n"
    "  --max-tokens N --temperature X --top-k N --top-p X --min-p X --repetition-penalty X --seed N     of generate\n"
    "  --stop TEXT       the text ends before it; again for several\n"
    "  --chat            the prompt is a user's message, which the model's chat template writes\n"
    "  --sliding         past the bundle's context, go on over the last part of the text\n"
    "  --format peft|gguf --outtype f32|f16|q8_0     of export: for PEFT or llama.cpp; numbers of a GGUF file\n"
    "  --force           of export and unpack: replace what is there\n"
    "  --threads N       default: what ExecuTorch chooses\n"
    "  --engine NAME     of those that the bundle has programs for; executorch is the CPU of one for android-gpu\n"
    "  --cache DIR|none  where packed weights are kept; default: zoexport/packed in the user's cache folder\n"
    "  --recover         go on from the last good record of a damaged log; a copy of it is kept\n"
    "  --change-settings go on with other settings or examples than the state's\n"
    "  --trust KEY       refuse bundles that no holder of KEY signed: a .pub file, or its line; again for several\n"
    "  --skip-hashes     check the sizes of the bundle's files only\n"
    "  --json            one JSON object on standard output\n"
    "  --timings         of train, before it, one JSON object a step: seconds, memory, what each program has cost so\n"
    "                    far, and each kind of kernel on a GPU; in it, of eval too, also the seconds of opening the "
    "bundle\n";

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
    if (const auto flag = flags().find(name); flag != flags().end()) {
      options.*(flag->second) = true;
      continue;
    }
    const auto setter = setters().find(name);
    if (setter == setters().end()) {
      return bad(name, "no such option", "one of those that --help lists");
    }
    if (i + 1 == count) {
      return bad(name, "nothing after it", "a value");
    }
    ZO_TRY(setter->second(options, arguments[++i]));
  }
  ZO_TRY(check_required(options));
  return options;
}

}  // namespace zoexport::runner
