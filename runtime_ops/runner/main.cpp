// zoexport-runner: a host of the session for a phone's shell. Progress goes to standard error; with --json one object
// goes to standard output.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "job/calls.h"
#include "runner/generate.h"
#include "runner/options.h"
#include "session/decimal.h"

namespace {

using namespace zoexport;
using nlohmann::json;
using runner::Options;

constexpr double kMegabyte = 1e6;

volatile std::sig_atomic_t stop_requested = 0;

extern "C" void request_stop(int) { stop_requested = 1; }

int32_t stop_at_part(void*, uint64_t, uint64_t) { return stop_requested; }

// The exit codes of the Python command line.
int exit_code(int32_t code) {
  switch (code) {
    case ZO_OK:
      return 0;
    case ZO_INVALID_ARGUMENT:
      return 2;
    case ZO_DIVERGED:
      return 3;
    case ZO_CANCELLED:
      return 130;
    default:
      return 1;
  }
}

int fail(const Failure& failure, bool as_json) {
  std::fprintf(stderr, "error: %s: found %s; expected %s. %s\n", failure.where.c_str(), failure.found.c_str(),
               failure.expected.c_str(), failure.fix.c_str());
  if (as_json) {
    const json out = {
        {"error",
         {{"where", failure.where}, {"found", failure.found}, {"expected", failure.expected}, {"fix", failure.fix}}}};
    std::printf("%s\n", out.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  }
  return exit_code(failure.code);
}

// Attaches the state, and takes the settings of the command line.
Status begin_run(const Options& options, zo_session* session) {
  json settings = options.settings;
  if (options.verb == "train" && options.seed) {
    settings["seed"] = *options.seed;
  }
  if (!options.state.empty()) {
    json attach = options.attach;
    attach["read_only"] = options.verb != "train";
    attach["seed"] = settings.value("seed", json());
    ZO_TRY(call(zo_session_attach, session, options.state.c_str(), attach.dump().c_str()));
  }
  return call(zo_session_configure, session, settings.dump().c_str());
}

// The examples of a file, tokenized or of data; the tokenizer is closed again, as it takes memory.
Result<DatasetHandle> read_examples(const Options& options, zo_session* session, const std::string& tokenized,
                                    const std::string& data, json& out) {
  DatasetHandle dataset(zo_dataset_new());
  if (data.empty()) {
    ZO_TRY(call(zo_dataset_load, dataset.get(), tokenized.c_str()));
    return dataset;
  }
  ZO_ASSIGN(reading, reading_of(session));
  for (const auto& [key, value] : reading.items()) {
    reading[key] = options.settings.value(key, value);
  }
  ZO_ASSIGN(tokenizer, open_tokenizer(options.bundle, options.open));
  ZO_ASSIGN(report, json_of(zo_dataset_read, dataset.get(), tokenizer.get(), data.c_str(), reading.dump().c_str(),
                            stop_at_part, static_cast<void*>(nullptr)));
  if (const std::string note = report["note"]; !note.empty()) {
    std::fprintf(stderr, "%s\n", note.c_str());
  }
  out["shortened"] = report["shortened"];
  return dataset;
}

struct Data {
  DatasetHandle train;
  DatasetHandle held_out;  // null: none are given
};

Result<Data> read_data(const Options& options, zo_session* session, json& out) {
  ZO_ASSIGN(dataset, read_examples(options, session, options.examples, options.data, out));
  Data data{std::move(dataset), nullptr};
  if (options.validates()) {
    json ignored;
    ZO_ASSIGN(held_out, read_examples(options, session, options.eval_examples, options.eval_data, ignored));
    data.held_out = std::move(held_out);
  }
  return data;
}

json megabytes(uint64_t bytes) { return bytes == 0 ? json() : json(std::round(static_cast<double>(bytes) / 1e5) / 10); }

// The costs of programs and kernels that ran, by name.
void add_costs(zo_session* session, json& out) {
  const auto costs = json_of(zo_session_costs, session);
  for (const auto& [kind, count] : {std::pair("programs", "calls"), std::pair("kernels", "dispatches")}) {
    out[kind] = json::object();
    for (json one : costs.ok() ? (*costs)[kind] : json::array()) {
      const std::string name = one["name"];
      if (one[count] > 0) {
        one.erase("name");
        out[kind][name] = std::move(one);
      }
    }
  }
}

struct Progress {
  const Options* options = nullptr;
  zo_session* session = nullptr;
  std::vector<double> seconds;
  uint64_t peak_anonymous = 0;
};

int32_t on_progress(void* user, const zo_progress* progress) {
  auto* kept = static_cast<Progress*>(user);
  kept->seconds.push_back(progress->seconds);
  kept->peak_anonymous = std::max(kept->peak_anonymous, progress->anonymous_bytes);
  if (kept->options->timings) {
    json line = {{"step", progress->step},
                 {"seconds", progress->seconds},
                 {"anonymous_mb", megabytes(progress->anonymous_bytes)}};
    add_costs(kept->session, line);
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  if (progress->notice != nullptr) {
    std::fprintf(stderr, "%s\n", progress->notice);
  }
  std::fprintf(stderr, "step %llu/%llu  loss %.4f  learning_rate %.3g  %.3f s  %.0f MB anonymous\n",
               static_cast<unsigned long long>(progress->step), static_cast<unsigned long long>(progress->total),
               progress->loss, progress->learning_rate, progress->seconds,
               static_cast<double>(progress->anonymous_bytes) / kMegabyte);
  return stop_requested;
}

int32_t on_evaluation(void*, const char* text) {
  const json found = json::parse(text);
  std::fprintf(stderr, "step %s  held-out loss %.4f%s\n", found["step"].dump().c_str(),
               found["loss"].is_null() ? std::nan("") : found["loss"].get<double>(),
               found["best"] == true ? ", the best so far" : "");
  return stop_requested;
}

// Adds the keys `evaluations` and `best_step`.
Status add_evaluations(zo_session* session, json& out) {
  ZO_ASSIGN(found, json_of(zo_session_evaluations, session));
  out["evaluations"] = json::array();
  out["best_step"] = nullptr;
  for (json& one : found) {
    if (one["best"] == true) {
      out["best_step"] = one["step"];
    }
    one.erase("best");
    out["evaluations"].push_back(std::move(one));
  }
  return {};
}

Status train(const Options& options, zo_session* session, const Data& data, json& out) {
  Progress progress;
  progress.options = &options;
  progress.session = session;
  const zo_train_callbacks callbacks = {&progress, on_progress, on_evaluation, stop_at_part};
  ZO_TRY(
      call(zo_session_train, session, data.train.get(), data.held_out.get(), options.train.dump().c_str(), &callbacks));
  ZO_TRY(add_evaluations(session, out));
  ZO_ASSIGN(info, json_of(zo_session_info, session));
  json losses = json::array();
  for (uint64_t i = 0; i < info["steps"].get<uint64_t>(); ++i) {
    zo_record record = {};
    ZO_TRY(call(zo_session_record, session, i, &record, static_cast<float*>(nullptr)));
    losses.push_back(json_number(static_cast<double>(record.loss)));
  }
  ZO_ASSIGN(memory, json_of(zo_memory_usage));
  std::sort(progress.seconds.begin(), progress.seconds.end());
  const size_t count = progress.seconds.size();
  const double median =
      count == 0 ? std::nan("") : (progress.seconds[(count - 1) / 2] + progress.seconds[count / 2]) / 2;
  const uint64_t anonymous = memory["anonymous_bytes"];
  out.update({{"steps", info["steps"]},
              {"engine", info["engine"]},
              {"losses", losses},
              {"step_seconds_median", json_number(median)},
              {"peak_rss_mb", megabytes(memory["peak_rss_bytes"])},
              {"peak_anonymous_mb", megabytes(std::max(progress.peak_anonymous, anonymous))},
              {"state", options.state}});
  return {};
}

Status inspect(zo_session* session, json& out) {
  ZO_ASSIGN(info, json_of(zo_session_info, session));
  ZO_ASSIGN(slots, json_of(zo_session_slots, session));
  for (const char* const key : {"bundle_id", "method", "target", "engine", "rows", "max_length", "copies",
                                "num_queries", "max_labels", "seed", "steps"}) {
    out[key] = info[key];
  }
  out["slots"] = json::array();
  for (const json& slot : slots) {
    out["slots"].push_back({{"name", slot["name"]}, {"role", slot["role"]}, {"shape", slot["shape"]}});
  }
  return {};
}

Status write_adapter(const Options& options, zo_session* session, json& out) {
  ZO_ASSIGN(info, json_of(zo_session_info, session));
  ZO_TRY(call(zo_session_export_adapter, session, options.write.dump().c_str(), options.output.c_str()));
  out = {{"adapter", options.output}, {"format", options.write.value("format", "peft")}, {"steps", info["steps"]}};
  return {};
}

Status unpack(const Options& options, json& out) {
  json wanted = {{"replace", options.write.value("replace", false)},
                 {"trusted_keys", options.open.value("trusted_keys", json())}};
  out = {{"bundle", options.bundle}};
  return call(zo_bundle_unpack, options.file.c_str(), options.bundle.c_str(), wanted.dump().c_str(), stop_at_part,
              static_cast<void*>(nullptr));
}

Status run_session(const Options& options, json& out) {
  const auto start = std::chrono::steady_clock::now();
  ZO_ASSIGN(session, open_session(options.bundle, options.open));
  const double open_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // A run that continues decides how data is read; a new state comes after data that can be used, so that none is left
  // behind.
  const bool continues = !options.state.empty() && ::access((options.state + "/state.json").c_str(), F_OK) == 0;
  if (continues) {
    ZO_TRY(begin_run(options, session.get()));
  }
  Data data;
  if (options.takes_examples()) {
    ZO_ASSIGN(read, read_data(options, session.get(), out));
    data = std::move(read);
  }
  if (!continues) {
    ZO_TRY(begin_run(options, session.get()));
  }
  if (options.verb == "inspect") {
    ZO_TRY(inspect(session.get(), out));
  } else if (options.verb == "generate") {
    ZO_ASSIGN(made, runner::generate(options, session.get(), stop_requested));
    out = std::move(made);
  } else if (options.verb == "export") {
    ZO_TRY(write_adapter(options, session.get(), out));
  } else if (options.verb == "train") {
    ZO_TRY(train(options, session.get(), data, out));
  } else {
    const zo_dataset* const examples = data.train.get();
    ZO_ASSIGN(found, json_of(zo_session_evaluate, session.get(), examples, stop_at_part, static_cast<void*>(nullptr)));
    out.update(found);
  }
  ZO_ASSIGN(info, json_of(zo_session_info, session.get()));
  if (options.timings && options.takes_examples()) {
    out["open_seconds"] = open_seconds;
    add_costs(session.get(), out);
    out["device_mb"] = megabytes(info["device_bytes"]);
  }
  return {};
}

void print(const Options& options, const json& out) {
  if (options.json) {
    std::printf("%s\n", out.dump().c_str());
    return;
  }
  for (const auto& [key, value] : out.items()) {
    if (key != "losses" && key != "tokens" && key != "text") {
      std::printf("%s: %s\n", key.c_str(), value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
    }
  }
}

int run(int count, char** arguments) {
  const auto options = runner::parse_options(count, arguments);
  if (!options.ok()) {
    return fail(options.failure(), false);
  }
  json out;
  const Status status = options->verb == "unpack" ? unpack(*options, out) : run_session(*options, out);
  if (!status.ok()) {
    return fail(status.failure(), options->json);
  }
  // The results of a file of prompts were printed one by one.
  if (options->verb != "generate" || options->data.empty()) {
    print(*options, out);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && (std::strcmp(arguments[1], "--help") == 0 || std::strcmp(arguments[1], "-h") == 0)) {
    std::printf("%s", runner::kUsage);
    return 0;
  }
  // The current step is finished and saved; a write beyond a limit becomes an error message instead of the end.
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run(count, arguments);
  } catch (const std::exception& exception) {  // the session catches its own: what is left is a lack of memory
    std::fprintf(stderr,
                 "error: this process: found %s; expected memory for its options and results. Close other apps.\n",
                 exception.what());
    return exit_code(ZO_INTERNAL_ERROR);
  }
}
