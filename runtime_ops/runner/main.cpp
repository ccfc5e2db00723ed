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
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "bindings/handles.h"
#include "runner/generate.h"
#include "runner/options.h"
#include "zoexport/session.h"

namespace {

using nlohmann::json;
using zoexport::DatasetHandle;
using zoexport::SessionHandle;
using zoexport::sized;
using zoexport::runner::Options;

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

int fail(const Options& options, const zo_error& error) {
  std::fprintf(stderr, "error: %s: found %s; expected %s. %s\n", error.where, error.found, error.expected, error.fix);
  if (options.json) {
    const json out = {
        {"error", {{"where", error.where}, {"found", error.found}, {"expected", error.expected}, {"fix", error.fix}}}};
    std::printf("%s\n", out.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  }
  return exit_code(error.code);
}

zo_open_options open_options(const Options& options) {
  return {sizeof(zo_open_options),
          options.threads,
          options.skip_hashes ? 1u : 0u,
          nullptr,
          options.cache ? options.cache->c_str() : nullptr,
          options.trusted ? options.trusted->c_str() : nullptr,
          options.engine.empty() ? nullptr : options.engine.c_str(),
          options.timings ? 1u : 0u};
}

// Attaches the state, and takes the settings of the command line.
zo_status begin_run(const Options& options, zo_session* session, zo_error& error) {
  // That of generate is of what is drawn.
  const std::optional<uint64_t> seed = options.verb == "generate" ? std::nullopt : options.seed;
  zo_status status = ZO_OK;
  if (!options.state.empty()) {
    zo_attach_options attach = sized<zo_attach_options>();
    attach.mode = options.verb == "train" ? ZO_STATE_TRAIN : ZO_STATE_READ;
    attach.seed = seed ? &*seed : nullptr;
    attach.recover = options.recover ? 1 : 0;
    attach.change_settings = options.change_settings ? 1 : 0;
    attach.last = options.last ? 1 : 0;
    status = zo_session_attach_with(session, options.state.c_str(), &attach, &error);
  }
  zo_run run = sized<zo_run>();
  if (status == ZO_OK) {
    status = zo_session_run(session, &run, &error);
  }
  if (status != ZO_OK) {
    return status;
  }
  run.lr = options.lr.value_or(run.lr);
  run.eps = options.eps.value_or(run.eps);
  run.seed = seed.value_or(run.seed);
  run.batch = options.batch.value_or(run.batch);
  run.accumulate = options.accumulate.value_or(run.accumulate);
  run.momentum = options.momentum.value_or(run.momentum);
  run.weight_decay = options.weight_decay.value_or(run.weight_decay);
  run.clip = options.clip.value_or(run.clip);
  run.checkpoint_every = options.checkpoint_every.value_or(run.checkpoint_every);
  run.keep_mb = options.keep_mb.value_or(run.keep_mb);
  run.cache_prefix_mb = options.cache_prefix_mb.value_or(run.cache_prefix_mb);
  run.schedule = options.schedule.value_or(run.schedule);
  run.warmup = options.warmup.value_or(run.warmup);
  run.loss = options.loss.value_or(run.loss);
  run.dpo_beta = options.dpo_beta.value_or(run.dpo_beta);
  run.orpo_beta = options.orpo_beta.value_or(run.orpo_beta);
  run.choices = options.choices.value_or(run.choices);
  run.pack = options.pack.value_or(run.pack);
  run.difference = options.difference.value_or(run.difference);
  return zo_session_configure(session, &run, &error);
}

// The examples of a file, tokenized or of data; the tokenizer is closed again, as it takes memory.
zo_status read_examples(const Options& options, zo_session* session, const std::string& tokenized,
                        const std::string& data, zo_dataset* dataset, uint64_t& shortened, zo_error& error) {
  if (data.empty()) {
    return zo_dataset_load(dataset, tokenized.c_str(), &error);
  }
  zo_run run = sized<zo_run>();
  zo_status status = zo_session_run(session, &run, &error);
  const zo_open_options open = open_options(options);
  zo_tokenizer* tokenizer = nullptr;
  status = status == ZO_OK ? zo_tokenizer_open(options.bundle.c_str(), &open, &tokenizer, &error) : status;
  zo_read_report report = sized<zo_read_report>();
  if (status == ZO_OK) {
    const zo_read_options read = {sizeof(zo_read_options), options.loss.value_or(run.loss),
                                  options.pack.value_or(run.pack)};
    status = zo_dataset_read_with(dataset, tokenizer, data.c_str(), &read, stop_at_part, nullptr, &report, &error);
  }
  zo_tokenizer_close(tokenizer);
  if (report.note[0] != '\0') {
    std::fprintf(stderr, "%s\n", report.note);
  }
  shortened = report.shortened;
  return status;
}

// Those of the command line; `held_out` stays empty where none are asked for.
zo_status read_data(const Options& options, zo_session* session, zo_dataset* dataset, DatasetHandle& held_out,
                    json& out, zo_error& error) {
  uint64_t shortened = 0;
  zo_status status = read_examples(options, session, options.examples, options.data, dataset, shortened, error);
  if (!options.data.empty()) {
    out["shortened"] = shortened;
  }
  if (status == ZO_OK && options.validates()) {
    held_out.reset(zo_dataset_new());
    status =
        read_examples(options, session, options.eval_examples, options.eval_data, held_out.get(), shortened, error);
  }
  return status;
}

json number(double value) { return std::isfinite(value) ? json(value) : json(); }

json megabytes(uint64_t bytes) { return bytes == 0 ? json() : json(std::round(static_cast<double>(bytes) / 1e5) / 10); }

// What each program has cost since the session was opened, of those that ran.
json program_costs(zo_session* session) {
  json costs = json::object();
  zo_program_cost cost = sized<zo_program_cost>();
  for (uint32_t i = 0; zo_session_program_cost(session, i, &cost, nullptr) == ZO_OK; ++i) {
    if (cost.calls > 0) {
      costs[cost.name] = {{"calls", cost.calls}, {"seconds", cost.seconds}, {"load_seconds", cost.load_seconds}};
    }
  }
  return costs;
}

// Likewise each kind of kernel, where the engine counts them.
json kernel_costs(zo_session* session) {
  json costs = json::object();
  zo_kernel_cost cost = sized<zo_kernel_cost>();
  for (uint32_t i = 0; zo_session_kernel_cost(session, i, &cost, nullptr) == ZO_OK; ++i) {
    if (cost.dispatches > 0) {
      costs[cost.name] = {{"dispatches", cost.dispatches},
                          {"seconds", number(cost.seconds)},
                          {"flops", cost.flops},
                          {"bytes", cost.bytes}};
    }
  }
  return costs;
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
    const json line = {{"step", progress->step},
                       {"seconds", progress->seconds},
                       {"anonymous_mb", megabytes(progress->anonymous_bytes)},
                       {"programs", program_costs(kept->session)},
                       {"kernels", kernel_costs(kept->session)}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  std::fprintf(stderr, "step %llu/%llu  loss %.4f  lr %.3g  %.3f s  %.0f MB anonymous\n",
               static_cast<unsigned long long>(progress->step), static_cast<unsigned long long>(progress->total),
               progress->loss, progress->lr, progress->seconds,
               static_cast<double>(progress->anonymous_bytes) / kMegabyte);
  return stop_requested;
}

int32_t on_evaluated(void*, const zo_evaluated* evaluated) {
  std::fprintf(stderr, "step %llu  held-out loss %.4f%s\n", static_cast<unsigned long long>(evaluated->step),
               evaluated->loss, evaluated->best != 0 ? ", the best so far" : "");
  return stop_requested;
}

// The keys `evaluations` and `best_step`.
void add_evaluations(zo_session* session, json& out) {
  out["evaluations"] = json::array();
  out["best_step"] = nullptr;
  zo_evaluated one = sized<zo_evaluated>();
  for (uint32_t i = 0; zo_session_evaluated(session, i, &one, nullptr) == ZO_OK; ++i) {
    out["evaluations"].push_back({{"step", one.step},
                                  {"loss", number(one.loss)},
                                  {"accuracy", number(one.accuracy)},
                                  {"token_accuracy", number(one.token_accuracy)},
                                  {"margin", number(one.margin)}});
    if (one.best != 0) {
      out["best_step"] = one.step;
    }
  }
}

zo_status train(const Options& options, zo_session* session, zo_dataset* dataset, const zo_dataset* held_out, json& out,
                zo_error& error) {
  Progress progress;
  progress.options = &options;
  progress.session = session;
  zo_train_options wanted = sized<zo_train_options>();
  wanted.total_steps = options.steps;
  wanted.held_out = held_out;
  wanted.every = options.eval_every;
  wanted.patience = options.patience;
  wanted.keep = options.keep;
  wanted.on_progress = on_progress;
  wanted.on_evaluated = on_evaluated;
  wanted.on_part = stop_at_part;
  wanted.user = &progress;
  zo_status status = zo_session_train_with(session, dataset, &wanted, &error);
  if (status != ZO_OK) {
    return status;
  }
  add_evaluations(session, out);
  zo_info info = sized<zo_info>();
  status = zo_session_info(session, &info, &error);
  json losses = json::array();
  for (uint64_t i = 0; status == ZO_OK && i < info.steps; ++i) {
    zo_record record = sized<zo_record>();
    status = zo_session_record(session, i, &record, nullptr, &error);
    losses.push_back(number(static_cast<double>(record.loss)));
  }
  zo_memory memory = sized<zo_memory>();
  zo_memory_usage(&memory, nullptr);
  std::sort(progress.seconds.begin(), progress.seconds.end());
  const size_t count = progress.seconds.size();
  const double median =
      count == 0 ? std::nan("") : (progress.seconds[(count - 1) / 2] + progress.seconds[count / 2]) / 2;
  out.update(json{{"steps", info.steps},
                  {"losses", losses},
                  {"step_seconds_median", number(median)},
                  {"peak_rss_mb", megabytes(memory.peak_rss_bytes)},
                  {"peak_anonymous_mb", megabytes(std::max(progress.peak_anonymous, memory.anonymous_bytes))},
                  {"state", options.state}});
  return status;
}

zo_status evaluate(zo_session* session, zo_dataset* dataset, json& out, zo_error& error) {
  zo_evaluation result = sized<zo_evaluation>();
  const zo_status status = zo_session_evaluate(session, dataset, stop_at_part, nullptr, &result, &error);
  out.update(json{{"loss", number(result.loss)},
                  {"accuracy", number(result.accuracy)},
                  {"token_accuracy", number(result.token_accuracy)},
                  {"margin", number(result.margin)},
                  {"examples", result.examples}});
  return status;
}

zo_status inspect(zo_session* session, json& out, zo_error& error) {
  zo_info info = sized<zo_info>();
  zo_status status = zo_session_info(session, &info, &error);
  if (status != ZO_OK) {
    return status;
  }
  out = {{"bundle_id", info.bundle_id}, {"method", info.method},   {"target", info.target},
         {"engine", info.engine},       {"rows", info.rows},       {"seq_len", info.seq_len},
         {"copies", info.copies},       {"queries", info.queries}, {"max_labels", info.max_labels},
         {"seed", info.seed},           {"steps", info.steps},     {"slots", json::array()}};
  for (uint32_t i = 0; status == ZO_OK && i < info.slots; ++i) {
    zo_slot_info slot = sized<zo_slot_info>();
    status = zo_session_slot(session, i, &slot, &error);
    if (status == ZO_OK) {
      out["slots"].push_back({{"name", slot.name},
                              {"role", slot.role},
                              {"shape", std::vector<int64_t>(slot.shape, slot.shape + slot.rank)}});
    }
  }
  return status;
}

zo_status write_adapter(const Options& options, zo_session* session, json& out, zo_error& error) {
  zo_info info = sized<zo_info>();
  const zo_export_options wanted{sizeof(wanted), options.format, options.outtype, options.force ? 1u : 0u};
  zo_status status = zo_session_info(session, &info, &error);
  status = status == ZO_OK ? zo_session_export_adapter(session, &wanted, options.output.c_str(), &error) : status;
  out = {{"adapter", options.output},
         {"format", options.format == ZO_ADAPTER_GGUF ? "gguf" : "peft"},
         {"steps", info.steps}};
  return status;
}

zo_status unpack(const Options& options, json& out, zo_error& error) {
  zo_unpack_options wanted = sized<zo_unpack_options>();
  wanted.replace = options.force ? 1 : 0;
  wanted.trusted_keys = options.trusted ? options.trusted->c_str() : nullptr;
  wanted.on_progress = stop_at_part;
  out = {{"bundle", options.bundle}};
  return zo_bundle_unpack(options.file.c_str(), options.bundle.c_str(), &wanted, &error);
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

int run(const Options& options) {
  SessionHandle session;
  zo_error error{};
  json out;
  if (options.verb == "unpack") {
    if (unpack(options, out, error) != ZO_OK) {
      return fail(options, error);
    }
    print(options, out);
    return 0;
  }
  const DatasetHandle dataset(zo_dataset_new());
  DatasetHandle held_out;
  const zo_open_options open = open_options(options);
  const auto start = std::chrono::steady_clock::now();
  zo_session* opened = nullptr;
  zo_status status = zo_session_open(options.bundle.c_str(), &open, &opened, &error);
  session.reset(opened);
  const double open_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // A run that goes on says how data is read; a new state comes after data that can be used, so that none is left behind.
  const bool goes_on = !options.state.empty() && ::access((options.state + "/state.json").c_str(), F_OK) == 0;
  if (status == ZO_OK && goes_on) {
    status = begin_run(options, opened, error);
  }
  if (status == ZO_OK && options.takes_examples()) {
    status = read_data(options, opened, dataset.get(), held_out, out, error);
  }
  if (status == ZO_OK && !goes_on) {
    status = begin_run(options, opened, error);
  }
  if (status == ZO_OK && options.verb == "inspect") {
    status = inspect(session.get(), out, error);
  } else if (status == ZO_OK && options.verb == "generate") {
    status = zoexport::runner::generate(options, session.get(), stop_requested, out, error);
  } else if (status == ZO_OK && options.verb == "export") {
    status = write_adapter(options, session.get(), out, error);
  } else if (status == ZO_OK) {
    status = options.verb == "train" ? train(options, session.get(), dataset.get(), held_out.get(), out, error)
                                     : evaluate(session.get(), dataset.get(), out, error);
  }
  if (status != ZO_OK) {
    return fail(options, error);
  }
  zo_info info = sized<zo_info>();
  if (zo_session_info(session.get(), &info, nullptr) == ZO_OK && info.packed_problem[0] != '\0') {
    std::fprintf(stderr, "note: packed weights are not kept: %s\n", info.packed_problem);
  }
  if (options.timings && options.takes_examples()) {
    out["open_seconds"] = open_seconds;
    out["programs"] = program_costs(session.get());
    out["kernels"] = kernel_costs(session.get());
    out["device_mb"] = megabytes(info.device_bytes);
  }
  // Those of a file of prompts were printed as they came.
  if (options.verb != "generate" || options.data.empty()) {
    print(options, out);
  }
  return 0;
}

int run(int count, char** arguments) {
  const auto options = zoexport::runner::parse_options(count, arguments);
  if (!options.ok()) {
    const zoexport::Failure& failure = options.failure();
    std::fprintf(stderr, "error: %s: found %s; expected %s. %s\n", failure.where.c_str(), failure.found.c_str(),
                 failure.expected.c_str(), failure.fix.c_str());
    return exit_code(failure.code);
  }
  return run(*options);
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && (std::strcmp(arguments[1], "--help") == 0 || std::strcmp(arguments[1], "-h") == 0)) {
    std::printf("%s", zoexport::runner::kUsage);
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
