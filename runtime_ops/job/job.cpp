#include "job/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "session/decimal.h"
#include "session/storage/files.h"

namespace zoexport {
namespace {

using nlohmann::json;

constexpr double kNewestStep = 0.1;  // of the smoothed time of a step
constexpr char kLeaving[] = ".leaving";

constexpr char kIdle[] = "idle", kPreparing[] = "preparing", kEvaluating[] = "evaluating", kTraining[] = "training",
               kWaiting[] = "waiting", kPaused[] = "paused", kFailed[] = "failed", kDone[] = "done";

// The failure of a call that cannot be made while the job runs.
Failure busy(const char* call) {
  return {ZO_INVALID_ARGUMENT, "job", std::string(call) + " while it runs", "a job that does not run",
          "Pause it first."};
}

Result<json> described(const std::string& state) { return json_of(zo_state_describe, state.c_str()); }

}  // namespace

const Failure Job::kNone{ZO_OK, {}, {}, {}, {}};

Job::Job(std::string folder, json options, const zo_engine* engine)
    : folder_(std::move(folder)),
      options_(std::move(options)),
      engine_(engine == nullptr ? std::nullopt : std::optional<zo_engine>(*engine)) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(join(folder_, "states"), ignored)) {
    if (entry.path().extension() == kLeaving) {
      std::filesystem::remove_all(entry.path(), ignored);
    }
  }
  auto found = read_job(folder_);
  if (!found.ok()) {
    view_.phase = kFailed;
    problem_ = found.failure();
    return;
  }
  record_ = std::move(*found);
  if (record_) {
    show_record();
    const auto state = described(this->state());
    if (state.ok()) {
      view_.step = (*state).value("steps", uint64_t{0});
      held_out_ = record_->held_out.empty() ? HeldOut() : HeldOut(*state);
    }
  }
}

Result<SessionHandle> Job::open_bundle(const JobRecord& job) const {
  json options = options_;
  if (!job.engine.empty()) {
    options["engine"] = job.engine;
  }
  return open_session(job.bundle, options, engine_ ? &*engine_ : nullptr);
}

// Closes the tokenizer again, as it takes memory. `on_part` gets the bytes of each file.
Result<Job::Data> Job::read_data(const JobRecord& job, zo_session* session, zo_on_part on_part, void* user) const {
  ZO_ASSIGN(reading, reading_of(session));
  const std::string read = reading.dump();
  ZO_ASSIGN(tokenizer, open_tokenizer(job.bundle, options_));
  Data data{DatasetHandle(zo_dataset_new()), nullptr, {}};
  ZO_ASSIGN(report,
            json_of(zo_dataset_read, data.train.get(), tokenizer.get(), job.data.c_str(), read.c_str(), on_part, user));
  data.report = std::move(report);
  if (!job.held_out.empty()) {
    data.held_out.reset(zo_dataset_new());
    ZO_TRY(json_of(zo_dataset_read, data.held_out.get(), tokenizer.get(), job.held_out.c_str(), read.c_str(), on_part,
                   user));
  }
  return data;
}

Status Job::start(const JobRecord& asked, Answer answer) {
  ZO_TRY(begin("a start"));
  Status started = take_up(asked, answer);
  if (end()) {
    ZO_TRY(remove_job(folder_));
    return Failure{ZO_CANCELLED, "job", "a request to cancel", "the start to end", "Start it again."};
  }
  return started;
}

Status Job::begin(const char* call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (running_) {
    return busy(call);
  }
  running_ = true;
  cancelled_ = false;
  stop_ = Wait::kNone;
  step_seconds_ = 0;
  return {};
}

bool Job::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = false;
  view_.seconds_left = view_.part = kNaN;
  if (cancelled_) {
    record_.reset();
    view_ = View();
    held_out_ = HeldOut();
  }
  return cancelled_;
}

Status Job::take_up(const JobRecord& asked, Answer answer) {
  ZO_ASSIGN(session, open_bundle(asked));
  ZO_ASSIGN(info, json_of(zo_session_info, session.get()));
  ZO_TRY(call(zo_session_configure, session.get(), asked.settings.dump().c_str()));
  JobRecord record = asked;
  record.bundle_id = info["bundle_id"];
  const JobHost nobody{};
  Part part{this, &nobody};
  ZO_ASSIGN(data, read_data(asked, session.get(), Part::read, &part));
  ZO_ASSIGN(asks, question(record, data.train.get(), data.held_out.get()));
  if (asks && (answer == Answer::kAsk || (answer == Answer::kContinue && asks->nothing_left))) {
    return asks->message;
  }
  record.change = asks && answer == Answer::kContinue;
  if (answer == Answer::kRestart) {
    ZO_TRY(discard_state(record.bundle_id));
  }
  ZO_TRY(write_job(folder_, record));
  const std::lock_guard<std::mutex> lock(mutex_);
  record_ = std::move(record);
  show_record();
  view_.examples = data.report["examples"];
  view_.shortened = data.report["shortened"];
  return {};
}

Result<std::optional<Job::Question>> Job::question(const JobRecord& asked, const zo_dataset* data,
                                                   const zo_dataset* held_out) const {
  const std::string folder = state_of_job(folder_, asked.bundle_id);
  if (!exists(join(folder, "state.json"))) {
    return std::optional<Question>();
  }
  ZO_ASSIGN(state, described(folder));
  const uint64_t steps = state.value("steps", uint64_t{0});
  ZO_ASSIGN(digest, digest_of(data));
  const json known = state.value("data", json()), settings = state.value("settings", json());
  const bool other_data = known.is_object() && known.value("sha256", std::string()) != digest;
  const HeldOut before(state);
  ZO_ASSIGN(now, before.with(asked, held_out));
  std::string other_setting;
  for (const auto& [key, value] : asked.settings.items()) {
    if (other_setting.empty() && settings.is_object() && settings.contains(key) && settings[key] != value) {
      other_setting = key;
    }
  }
  const bool other_held_out = before.is_other(now);
  const bool all_taken = steps >= asked.steps, nothing_left = all_taken || now.ended();
  if (steps == 0 || !(other_data || other_held_out || !other_setting.empty() || nothing_left)) {
    return std::optional<Question>();
  }
  Failure message{ZO_QUESTION, "what was trained before", std::to_string(steps) + " steps", "",
                  all_taken      ? "Ask for more steps, or begin anew, which forgets them."
                  : nothing_left ? "Ask for more patience, or begin anew, which forgets them."
                                 : "Go on from there, or begin anew, which forgets them."};
  if (other_data) {
    message.found += " on " + std::to_string(known.value("examples", uint64_t{0})) + " other examples";
    message.expected = "steps on these examples";
  } else if (other_held_out) {
    message.found += " with " + before.told(now);
    message.expected = "steps with " + now.told(now);
  } else if (!other_setting.empty()) {
    message.found += " with " + other_setting + " " + settings[other_setting].dump();
    message.expected = "steps with " + other_setting + " " + asked.settings[other_setting].dump();
  } else if (all_taken) {
    message.expected = "fewer than the " + std::to_string(asked.steps) + " that are asked for";
  } else {
    message.found += ", the last evaluations of which had no lower loss";
    message.expected = "a run that its patience has not ended";
  }
  return std::optional<Question>({std::move(message), nothing_left});
}

Status Job::run(const JobHost& host) {
  ZO_TRY(begin("a second run"));
  if (!record_) {
    end();
    return Failure{ZO_INVALID_ARGUMENT, "job", "nothing to run", "a request", "Start it first."};
  }
  Status ended = run_to_end(host);
  if (end() && ended.ok()) {
    ended = remove_job(folder_);
    show(host, kIdle);
  }
  if (!ended.ok()) {
    show(host, kFailed, Wait::kNone, ended.failure());
  }
  return ended;
}

Status Job::run_to_end(const JobHost& host) {
  show(host, kPreparing);
  if (!may_go_on(host)) {
    return {};
  }
  show(host, kPreparing);
  auto opened = open(host);
  if (!opened.ok()) {
    // If a pause was requested while examples were read, may_go_on shows its reason.
    return opened.failure().code == ZO_CANCELLED && !may_go_on(host) ? Status() : Status(opened.failure());
  }
  ZO_TRY(attach(*opened));
  // A run with held-out examples finds what is asked for while it trains, unless its first steps were taken without them.
  const bool meanwhile = opened->held_out != nullptr;
  if (!meanwhile || (view_.step > 0 && held_out_.untrained().is_null())) {
    ZO_ASSIGN(before, evaluate(*opened, host, &JobRecord::before));
    if (!before) {
      return {};
    }
  }
  ZO_ASSIGN(whole, train(*opened, host));
  if (!whole) {
    return {};
  }
  if (!meanwhile) {
    ZO_ASSIGN(after, evaluate(*opened, host, &JobRecord::after));
    if (!after) {
      return {};
    }
  }
  ZO_TRY(keep([](JobRecord& record) { record.done = true; }));
  show(host, kDone);
  return {};
}

Result<Job::Opened> Job::open(const JobHost& host) {
  ZO_ASSIGN(session, open_bundle(*record_));
  ZO_ASSIGN(info, json_of(zo_session_info, session.get()));
  if (const std::string bundle_id = info["bundle_id"]; bundle_id != record_->bundle_id) {
    return Failure{ZO_BUNDLE_ERROR, record_->bundle, "bundle " + bundle_id,
                   "bundle " + record_->bundle_id + ", as when the run was started", "Start it again."};
  }
  ZO_TRY(call(zo_session_configure, session.get(), record_->settings.dump().c_str()));
  Part part{this, &host};
  ZO_ASSIGN(data, read_data(*record_, session.get(), Part::read, &part));
  const std::lock_guard<std::mutex> lock(mutex_);
  view_.examples = data.report["examples"];
  view_.shortened = data.report["shortened"];
  view_.notice = info["notice"];
  return Opened{std::move(session), std::move(data.train), std::move(data.held_out)};
}

Status Job::attach(const Opened& opened) {
  zo_session* const session = opened.session.get();
  json options = {{"change_settings", record_->change}};
  if (record_->settings.contains("seed")) {
    options["seed"] = record_->settings["seed"];
  }
  ZO_TRY(make_folder(join(folder_, "states")));
  ZO_TRY(call(zo_session_attach, session, state().c_str(), options.dump().c_str()));
  ZO_TRY(call(zo_session_configure, session, record_->settings.dump().c_str()));
  ZO_ASSIGN(info, json_of(zo_session_info, session));
  const uint64_t steps = info["steps"];
  LossHistory history;
  zo_record record = {};
  for (uint64_t i = 0; i < steps; ++i) {
    ZO_TRY(call(zo_session_record, session, i, &record, static_cast<float*>(nullptr)));
    history.add(i + 1, static_cast<double>(record.loss));
  }
  ZO_ASSIGN(found, described(state()));
  ZO_ASSIGN(held_out, HeldOut(found).with(*record_, opened.held_out.get()));
  const std::lock_guard<std::mutex> lock(mutex_);
  history_ = std::move(history);
  held_out_ = std::move(held_out);
  view_.step = steps;
  view_.loss = steps > 0 ? static_cast<double>(record.loss) : kNaN;
  return {};
}

Result<bool> Job::evaluate(const Opened& opened, const JobHost& host, json JobRecord::* found) {
  if (!record_->evaluate || !((*record_).*found).is_null()) {
    return true;
  }
  show(host, kEvaluating);
  const zo_dataset* data = opened.held_out ? opened.held_out.get() : opened.data.get();
  Part part{this, &host};
  const auto evaluation =
      json_of(zo_session_evaluate, opened.session.get(), data, Part::evaluated, static_cast<void*>(&part));
  if (!evaluation.ok()) {
    const Failure& failure = evaluation.failure();
    return failure.code == ZO_CANCELLED ? Result<bool>(false) : Result<bool>(failure);
  }
  ZO_TRY(keep([&](JobRecord& record) { record.*found = *evaluation; }));
  return true;
}

int32_t Job::Part::read(void* user, uint64_t done, uint64_t total) {
  const auto* part = static_cast<Part*>(user);
  part->job->show_part(*part->host, done, total);
  const std::lock_guard<std::mutex> lock(part->job->mutex_);
  return part->job->stop_ != Wait::kNone ? 1 : 0;
}

int32_t Job::Part::evaluated(void* user, uint64_t done, uint64_t total) {
  const auto* part = static_cast<Part*>(user);
  if (!part->job->may_go_on(*part->host)) {
    return 1;
  }
  if (part->job->view_.phase != kEvaluating) {  // this thread alone changes it
    part->job->show(*part->host, kEvaluating);
  }
  part->job->show_part(*part->host, done, total);
  return 0;
}

void Job::show_part(const JobHost& host, uint64_t done, uint64_t total) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    view_.part = total == 0 ? kNaN : static_cast<double>(done) / static_cast<double>(total);
  }
  host.changed();
}

Result<bool> Job::train(const Opened& opened, const JobHost& host) {
  Part run{this, &host};
  json options = record_->validation;
  options["steps"] = record_->steps;
  const std::string given = options.dump();
  zo_train_callbacks callbacks = {};
  callbacks.user = &run;
  callbacks.on_progress = [](void* user, const zo_progress* progress) -> int32_t {
    const auto* of = static_cast<Part*>(user);
    return of->job->taken(*progress, *of->host) ? 0 : 1;
  };
  callbacks.on_part = Part::evaluated;
  callbacks.on_evaluation = [](void* user, const char* found) -> int32_t {
    const auto* of = static_cast<Part*>(user);
    return of->job->evaluated(json::parse(found), *of->host) ? 0 : 1;
  };
  for (;;) {
    if (!may_go_on(host)) {
      return false;
    }
    show(host, kTraining);
    const Status status = call(zo_session_train, opened.session.get(), opened.data.get(), opened.held_out.get(),
                               given.c_str(), &callbacks);
    if (status.ok()) {
      return true;
    }
    if (status.failure().code != ZO_CANCELLED) {
      return status.failure();
    }
  }
}

bool Job::evaluated(const json& found, const JobHost& host) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_out_.add(found);
  }
  show(host, kTraining);
  const std::lock_guard<std::mutex> lock(mutex_);
  return stop_ == Wait::kNone;
}

bool Job::taken(const zo_progress& progress, const JobHost& host) {
  const zo_conditions now = look(host);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    step_seconds_ =
        step_seconds_ == 0 ? progress.seconds : step_seconds_ + kNewestStep * (progress.seconds - step_seconds_);
    view_.phase = kTraining;  // again, after what a reference model scored
    view_.step = progress.step;
    view_.loss = progress.loss;
    view_.part = kNaN;
    view_.seconds_left = step_seconds_ * static_cast<double>(progress.total - progress.step);
    view_.anonymous_bytes = std::max(view_.anonymous_bytes, progress.anonymous_bytes);
    view_.notice = progress.notice != nullptr ? progress.notice : view_.notice;
    history_.add(progress.step, progress.loss);
  }
  host.changed();
  const std::lock_guard<std::mutex> lock(mutex_);
  return stop_ == Wait::kNone && obstacle(now, host.limits) == Wait::kNone;
}

bool Job::may_go_on(const JobHost& host) {
  for (Wait waiting = Wait::kNone;;) {
    const zo_conditions now = look(host);
    Wait stop;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop = stop_;
    }
    const Wait reason = stop != Wait::kNone                                            ? stop
                        : waiting != Wait::kNone && !passed(waiting, now, host.limits) ? waiting
                                                                                       : obstacle(now, host.limits);
    if (reason == Wait::kNone) {
      return true;
    }
    const bool ends = stop != Wait::kNone || reason == Wait::kMemory;
    if (ends || reason != waiting) {
      show(host, ends ? kPaused : kWaiting, reason, waiting_message(reason, now, host.limits, folder_));
    }
    if (ends) {
      return false;
    }
    waiting = reason;
    std::unique_lock<std::mutex> lock(mutex_);
    asked_.wait_for(lock, std::chrono::duration<double>(host.limits.poll_seconds),
                    [&] { return stop_ != Wait::kNone; });
  }
}

zo_conditions Job::look(const JobHost& host) {
  zo_conditions now = unknown_conditions();
  if (host.callbacks.conditions != nullptr) {
    host.callbacks.conditions(host.callbacks.user, &now);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  view_.celsius = now.celsius;
  return now;
}

void Job::show(const JobHost& host, const char* phase, Wait reason, Failure problem) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    view_.phase = phase;
    view_.reason = reason;
    view_.part = kNaN;
    problem_ = std::move(problem);
  }
  host.changed();
}

// Show a record that no run continues yet.
void Job::show_record() {
  view_ = View();
  view_.phase = record_->done ? kDone : kPaused;
  view_.reason = record_->done ? Wait::kNone : Wait::kAsked;
  view_.steps = record_->steps;
  problem_ = kNone;
  history_ = LossHistory();
  held_out_ = HeldOut();
}

template <typename Change>
Status Job::keep(Change change) {
  const std::lock_guard<std::mutex> lock(mutex_);
  change(*record_);
  return write_job(folder_, *record_);
}

void Job::pause(Wait reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (running_ && stop_ == Wait::kNone) {
    stop_ = reason;
    asked_.notify_all();
  }
}

Status Job::cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (running_) {
    cancelled_ = true;
    stop_ = Wait::kAsked;
    asked_.notify_all();
    return {};
  }
  record_.reset();
  view_ = View();
  held_out_ = HeldOut();
  problem_ = kNone;
  return remove_job(folder_);
}

Status Job::discard() {
  std::string bundle_id;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (running_) {
      return busy("a discard");
    }
    bundle_id = record_ ? record_->bundle_id : "";
  }
  ZO_TRY(cancel());
  return bundle_id.empty() ? Status() : discard_state(bundle_id);
}

Status Job::discard_state(const std::string& bundle_id) {
  const std::string state = state_of_job(folder_, bundle_id), leaving = state + kLeaving;
  if (!exists(state)) {
    return {};
  }
  std::error_code error;
  std::filesystem::remove_all(leaving, error);
  // Gone at once: what is left of the folder when the process ends here is removed when the job is opened.
  ZO_TRY(rename_file(state, leaving));
  std::filesystem::remove_all(leaving, error);
  return error ? Status(system_failure(ZO_STATE_ERROR, leaving, error.value(), true)) : Status();
}

json Job::view() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  json before, after;
  if (record_ && record_->evaluate) {
    before = record_->before.is_null() ? held_out_.untrained() : record_->before;
    if (!record_->after.is_null() || record_->done) {
      after = record_->after.is_null() ? held_out_.kept() : record_->after;
    }
  }
  return {{"phase", view_.phase},
          {"reason", wait_text(view_.reason)},
          {"step", view_.step},
          {"steps", view_.steps},
          {"examples", view_.examples},
          {"shortened", view_.shortened},
          {"loss", json_number(view_.loss)},
          {"seconds_left", json_number(view_.seconds_left)},
          {"celsius", json_number(view_.celsius)},
          {"anonymous_bytes", view_.anonymous_bytes},
          {"before", before},
          {"after", after},
          {"part", json_number(view_.part)},
          {"best_step", held_out_.best_step()},
          {"evaluations", held_out_.made()},
          {"notice", view_.notice}};
}

std::vector<LossPoint> Job::losses() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return history_.points();
}

Failure Job::problem() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return problem_;
}

std::optional<JobRecord> Job::record() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return record_;
}

Result<SessionHandle> Job::session() const {
  const std::optional<JobRecord> record = this->record();
  if (!record) {
    return Failure{ZO_INVALID_ARGUMENT, "job", "no bundle", "a request", "Start it first."};
  }
  ZO_ASSIGN(session, open_bundle(*record));
  const std::string state = state_of_job(folder_, record->bundle_id);
  if (exists(join(state, "state.json"))) {
    ZO_TRY(call(zo_session_attach, session.get(), state.c_str(), R"({"read_only": true})"));
  }
  return session;
}

}  // namespace zoexport
