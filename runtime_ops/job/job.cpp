#include "job/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "job/calls.h"
#include "job/conditions.h"
#include "session/storage/files.h"

namespace zoexport {
namespace {

using nlohmann::json;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kNewestStep = 0.1;  // of the smoothed time of a step
constexpr char kLeaving[] = ".leaving";

// With the engine that the job was asked for, where it was.
Result<SessionHandle> open_session(const JobRecord& job, zo_open_options options) {
  if (!job.engine_name.empty()) {
    options.engine_name = job.engine_name.c_str();
  }
  zo_session* session = nullptr;
  ZO_TRY(call(zo_session_open, job.bundle.c_str(), &options, &session));
  return SessionHandle(session);
}

struct Data {
  DatasetHandle train;
  DatasetHandle held_out;  // null: of no file
  zo_read_report report;   // of those to train on
};

// The examples of a job's files for a session's run; the tokenizer is closed again, as it takes memory. `on_part` is told of
// each file's bytes.
Result<Data> read_data(const JobRecord& job, zo_session* session, const zo_open_options& options, zo_on_part on_part,
                       void* user) {
  zo_run run = sized<zo_run>();
  ZO_TRY(call(zo_session_run, session, &run));
  zo_tokenizer* opened = nullptr;
  ZO_TRY(call(zo_tokenizer_open, job.bundle.c_str(), &options, &opened));
  const TokenizerHandle tokenizer(opened);
  Data data{DatasetHandle(zo_dataset_new()), nullptr, sized<zo_read_report>()};
  const zo_read_options read = {sizeof(zo_read_options), run.loss, run.pack};
  ZO_TRY(call(zo_dataset_read_with, data.train.get(), tokenizer.get(), job.data.c_str(), &read, on_part, user,
              &data.report));
  if (!job.held_out.empty()) {
    data.held_out.reset(zo_dataset_new());
    zo_read_report ignored = sized<zo_read_report>();
    ZO_TRY(call(zo_dataset_read_with, data.held_out.get(), tokenizer.get(), job.held_out.c_str(), &read, on_part, user,
                &ignored));
  }
  return data;
}

zo_job_view empty_view() {
  zo_job_view view = sized<zo_job_view>();
  view.loss = view.seconds_left = view.celsius = view.part = kNaN;
  view.before = view.after = sized<zo_evaluation>();
  return view;
}

void show_evaluation(const std::optional<zo_evaluation>& found, int32_t& there, zo_evaluation& shown) {
  if (found) {
    there = 1;
    shown = *found;
  }
}

// What is said of a call that cannot be made while the job runs.
Failure busy(const char* call) {
  return {ZO_INVALID_ARGUMENT, "job", std::string(call) + " while it runs", "a job that does not run",
          "Pause it first."};
}

Result<json> described(const std::string& state) {
  size_t size = 0;
  ZO_TRY(call(zo_state_describe, state.c_str(), static_cast<char*>(nullptr), &size));
  std::string text(size, '\0');
  ZO_TRY(call(zo_state_describe, state.c_str(), text.data(), &size));
  return json::parse(text.c_str(), nullptr, false);
}

}  // namespace

const Failure Job::kNone{ZO_OK, {}, {}, {}, {}};

Job::Job(std::string folder) : folder_(std::move(folder)), view_(empty_view()) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(join(folder_, "states"), ignored)) {
    if (entry.path().extension() == kLeaving) {
      std::filesystem::remove_all(entry.path(), ignored);
    }
  }
  auto found = read_job(folder_);
  if (!found.ok()) {
    view_.phase = ZO_JOB_FAILED;
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

Status Job::start(const JobRecord& asked, int32_t answer, const zo_open_options& options) {
  ZO_TRY(begin("a start"));
  Status started = take_up(asked, answer, options);
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
  stop_ = ZO_WAIT_NONE;
  step_seconds_ = 0;
  return {};
}

bool Job::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = false;
  view_.seconds_left = view_.part = kNaN;
  if (cancelled_) {
    record_.reset();
    view_ = empty_view();
    held_out_ = HeldOut();
  }
  return cancelled_;
}

Status Job::take_up(const JobRecord& asked, int32_t answer, const zo_open_options& options) {
  ZO_ASSIGN(session, open_session(asked, options));
  zo_info info = sized<zo_info>();
  ZO_TRY(call(zo_session_info, session.get(), &info));
  JobRecord record = asked;
  record.bundle_id = info.bundle_id;
  const JobHost nobody{};
  Part part{this, &nobody};
  ZO_ASSIGN(data, read_data(asked, session.get(), options, Part::read, &part));
  ZO_ASSIGN(asks, question(record, session.get(), data.train.get(), data.held_out.get()));
  if (asks && (answer == ZO_JOB_ASK || (answer == ZO_JOB_CONTINUE && asks->nothing_left))) {
    return asks->message;
  }
  record.change = asks && answer == ZO_JOB_CONTINUE;
  if (answer == ZO_JOB_ANEW) {
    ZO_TRY(discard_state(record.bundle_id));
  }
  ZO_TRY(write_job(folder_, record));
  const std::lock_guard<std::mutex> lock(mutex_);
  record_ = std::move(record);
  show_record();
  view_.examples = data.report.examples;
  view_.shortened = data.report.shortened;
  return {};
}

Result<std::optional<Job::Question>> Job::question(const JobRecord& asked, zo_session* session, const zo_dataset* data,
                                                   const zo_dataset* held_out) const {
  const std::string folder = state_of_job(folder_, asked.bundle_id);
  if (!exists(join(folder, "state.json"))) {
    return std::optional<Question>();
  }
  ZO_ASSIGN(state, described(folder));
  const uint64_t steps = state.value("steps", uint64_t{0});
  zo_run run = sized<zo_run>();
  ZO_TRY(call(zo_session_run, session, &run));
  ZO_ASSIGN(digest, digest_of(data));
  const json known = state.value("data", json()), settings = state.value("settings", json());
  const bool other_data = known.is_object() && known.value("sha256", std::string()) != digest;
  const HeldOut before(state);
  ZO_ASSIGN(now, before.with(asked, held_out));
  const double rate = settings.is_object() ? settings.value("lr", run.lr) : run.lr;
  const bool other_rate = asked.lr != 0 && asked.lr != rate;
  const bool other_held_out = before.is_other(now);
  const bool all_taken = steps >= asked.steps, nothing_left = all_taken || now.ended();
  if (steps == 0 || !(other_data || other_held_out || other_rate || nothing_left)) {
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
  } else if (other_rate) {
    message.found += " with lr " + json(rate).dump();
    message.expected = "steps with lr " + json(asked.lr).dump();
  } else if (all_taken) {
    message.expected = "fewer than the " + std::to_string(asked.steps) + " that are asked for";
  } else {
    message.found += ", the last evaluations of which had no lower loss";
    message.expected = "a run that its patience has not ended";
  }
  return std::optional<Question>({std::move(message), nothing_left});
}

Status Job::run(const JobHost& host, const zo_open_options& options) {
  ZO_TRY(begin("a second run"));
  if (!record_) {
    end();
    return Failure{ZO_INVALID_ARGUMENT, "job", "nothing to run", "a request", "Start it first."};
  }
  Status ended = run_to_end(host, options);
  if (end() && ended.ok()) {
    ended = remove_job(folder_);
    show(host, ZO_JOB_IDLE);
  }
  if (!ended.ok()) {
    show(host, ZO_JOB_FAILED, ZO_WAIT_NONE, ended.failure());
  }
  return ended;
}

Status Job::run_to_end(const JobHost& host, const zo_open_options& options) {
  show(host, ZO_JOB_PREPARING);
  if (!may_go_on(host)) {
    return {};
  }
  show(host, ZO_JOB_PREPARING);
  auto opened = open(host, options);
  if (!opened.ok()) {
    // Of a pause that was asked for while examples were read, this says why.
    return opened.failure().code == ZO_CANCELLED && !may_go_on(host) ? Status() : Status(opened.failure());
  }
  ZO_TRY(attach(*opened));
  // A run with held-out examples finds what is asked for while it trains, unless its first steps were taken without them.
  const bool meanwhile = opened->held_out != nullptr;
  if (!meanwhile || (view().step > 0 && !held_out_.untrained())) {
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
  show(host, ZO_JOB_DONE);
  return {};
}

Result<Job::Opened> Job::open(const JobHost& host, const zo_open_options& options) {
  ZO_ASSIGN(session, open_session(*record_, options));
  zo_info info = sized<zo_info>();
  ZO_TRY(call(zo_session_info, session.get(), &info));
  if (info.bundle_id != record_->bundle_id) {
    return Failure{ZO_BUNDLE_ERROR, record_->bundle, std::string("bundle ") + info.bundle_id,
                   "bundle " + record_->bundle_id + ", as when the run was started", "Start it again."};
  }
  Part part{this, &host};
  ZO_ASSIGN(data, read_data(*record_, session.get(), options, Part::read, &part));
  const std::lock_guard<std::mutex> lock(mutex_);
  view_.examples = data.report.examples;
  view_.shortened = data.report.shortened;
  return Opened{std::move(session), std::move(data.train), std::move(data.held_out)};
}

Status Job::attach(const Opened& opened) {
  zo_session* const session = opened.session.get();
  zo_attach_options attach = sized<zo_attach_options>();
  attach.mode = ZO_STATE_TRAIN;
  attach.change_settings = record_->change ? 1 : 0;
  ZO_TRY(make_folder(join(folder_, "states")));
  ZO_TRY(call(zo_session_attach_with, session, state().c_str(), &attach));
  zo_run run = sized<zo_run>();
  ZO_TRY(call(zo_session_run, session, &run));
  if (record_->lr != 0) {
    run.lr = record_->lr;
    ZO_TRY(call(zo_session_configure, session, &run));
  }
  zo_info info = sized<zo_info>();
  ZO_TRY(call(zo_session_info, session, &info));
  LossHistory history;
  zo_record record = sized<zo_record>();
  for (uint64_t i = 0; i < info.steps; ++i) {
    ZO_TRY(call(zo_session_record, session, i, &record, static_cast<float*>(nullptr)));
    history.add(i + 1, static_cast<double>(record.loss));
  }
  ZO_ASSIGN(found, described(state()));
  ZO_ASSIGN(held_out, HeldOut(found).with(*record_, opened.held_out.get()));
  const std::lock_guard<std::mutex> lock(mutex_);
  history_ = std::move(history);
  held_out_ = std::move(held_out);
  view_.step = info.steps;
  view_.loss = info.steps > 0 ? static_cast<double>(record.loss) : kNaN;
  return {};
}

Result<bool> Job::evaluate(const Opened& opened, const JobHost& host, std::optional<zo_evaluation> JobRecord::* found) {
  if (!record_->evaluate || (*record_).*found) {
    return true;
  }
  show(host, ZO_JOB_EVALUATING);
  zo_evaluation evaluation = sized<zo_evaluation>();
  const zo_dataset* data = opened.held_out ? opened.held_out.get() : opened.data.get();
  Part part{this, &host};
  const Status status =
      call(zo_session_evaluate, opened.session.get(), data, Part::evaluated, static_cast<void*>(&part), &evaluation);
  if (!status.ok()) {
    return status.failure().code == ZO_CANCELLED ? Result<bool>(false) : Result<bool>(status.failure());
  }
  ZO_TRY(keep([&](JobRecord& record) { record.*found = evaluation; }));
  return true;
}

int32_t Job::Part::read(void* user, uint64_t done, uint64_t total) {
  const auto* part = static_cast<Part*>(user);
  part->job->show_part(*part->host, done, total);
  const std::lock_guard<std::mutex> lock(part->job->mutex_);
  return part->job->stop_ != ZO_WAIT_NONE ? 1 : 0;
}

int32_t Job::Part::evaluated(void* user, uint64_t done, uint64_t total) {
  const auto* part = static_cast<Part*>(user);
  if (!part->job->may_go_on(*part->host)) {
    return 1;
  }
  if (part->job->view().phase != ZO_JOB_EVALUATING) {
    part->job->show(*part->host, ZO_JOB_EVALUATING);
  }
  part->job->show_part(*part->host, done, total);
  return 0;
}

void Job::show_part(const JobHost& host, uint64_t done, uint64_t total) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    view_.part = total == 0 ? kNaN : static_cast<double>(done) / static_cast<double>(total);
  }
  if (host.changed != nullptr) {
    host.changed(host.user);
  }
}

Result<bool> Job::train(const Opened& opened, const JobHost& host) {
  Part run{this, &host};
  zo_train_options options = sized<zo_train_options>();
  options.total_steps = record_->steps;
  options.held_out = opened.held_out.get();
  options.every = record_->eval_every;
  options.patience = record_->patience;
  options.keep = record_->keep;
  options.user = &run;
  options.on_progress = [](void* user, const zo_progress* progress) -> int32_t {
    const auto* of = static_cast<Part*>(user);
    return of->job->taken(*progress, *of->host) ? 0 : 1;
  };
  options.on_part = Part::evaluated;
  options.on_evaluated = [](void* user, const zo_evaluated* found) -> int32_t {
    const auto* of = static_cast<Part*>(user);
    return of->job->evaluated(*found, *of->host) ? 0 : 1;
  };
  for (;;) {
    if (!may_go_on(host)) {
      return false;
    }
    show(host, ZO_JOB_TRAINING);
    const Status status =
        call(zo_session_train_with, opened.session.get(), static_cast<const zo_dataset*>(opened.data.get()),
             static_cast<const zo_train_options*>(&options));
    if (status.ok()) {
      return true;
    }
    if (status.failure().code != ZO_CANCELLED) {
      return status.failure();
    }
  }
}

bool Job::evaluated(const zo_evaluated& found, const JobHost& host) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    held_out_.add(found);
  }
  show(host, ZO_JOB_TRAINING);
  const std::lock_guard<std::mutex> lock(mutex_);
  return stop_ == ZO_WAIT_NONE;
}

bool Job::taken(const zo_progress& progress, const JobHost& host) {
  const zo_conditions now = look(host);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    step_seconds_ =
        step_seconds_ == 0 ? progress.seconds : step_seconds_ + kNewestStep * (progress.seconds - step_seconds_);
    view_.phase = ZO_JOB_TRAINING;  // again, after what a reference model scored
    view_.step = progress.step;
    view_.loss = progress.loss;
    view_.part = kNaN;
    view_.seconds_left = step_seconds_ * static_cast<double>(progress.total - progress.step);
    view_.anonymous_bytes = std::max(view_.anonymous_bytes, progress.anonymous_bytes);
    history_.add(progress.step, progress.loss);
  }
  if (host.changed != nullptr) {
    host.changed(host.user);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return stop_ == ZO_WAIT_NONE && obstacle(now, host.limits) == ZO_WAIT_NONE;
}

bool Job::may_go_on(const JobHost& host) {
  for (int32_t waiting = ZO_WAIT_NONE;;) {
    const zo_conditions now = look(host);
    int32_t stop;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop = stop_;
    }
    const int32_t reason = stop != ZO_WAIT_NONE                                            ? stop
                           : waiting != ZO_WAIT_NONE && !passed(waiting, now, host.limits) ? waiting
                                                                                           : obstacle(now, host.limits);
    if (reason == ZO_WAIT_NONE) {
      return true;
    }
    const bool ends = stop != ZO_WAIT_NONE || reason == ZO_WAIT_MEMORY;
    if (ends || reason != waiting) {
      show(host, ends ? ZO_JOB_PAUSED : ZO_JOB_WAITING, reason, waiting_message(reason, now, host.limits, folder_));
    }
    if (ends) {
      return false;
    }
    waiting = reason;
    std::unique_lock<std::mutex> lock(mutex_);
    asked_.wait_for(lock, std::chrono::duration<double>(host.limits.poll_seconds),
                    [&] { return stop_ != ZO_WAIT_NONE; });
  }
}

zo_conditions Job::look(const JobHost& host) {
  zo_conditions now = unknown_conditions();
  if (host.conditions != nullptr) {
    host.conditions(host.user, &now);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  view_.celsius = now.celsius;
  return now;
}

void Job::show(const JobHost& host, int32_t phase, int32_t reason, Failure problem) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    view_.phase = phase;
    view_.reason = reason;
    view_.part = kNaN;
    problem_ = std::move(problem);
  }
  if (host.changed != nullptr) {
    host.changed(host.user);
  }
}

// As a record is shown that no run goes on with, yet.
void Job::show_record() {
  view_ = empty_view();
  view_.phase = record_->done ? ZO_JOB_DONE : ZO_JOB_PAUSED;
  view_.reason = record_->done ? ZO_WAIT_NONE : ZO_WAIT_ASKED;
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

void Job::pause(int32_t reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (running_ && stop_ == ZO_WAIT_NONE) {
    stop_ = reason == ZO_WAIT_MEMORY || reason == ZO_WAIT_BACKGROUND ? reason : ZO_WAIT_ASKED;
    asked_.notify_all();
  }
}

Status Job::cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (running_) {
    cancelled_ = true;
    stop_ = ZO_WAIT_ASKED;
    asked_.notify_all();
    return {};
  }
  record_.reset();
  view_ = empty_view();
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

zo_job_view Job::view() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  zo_job_view view = view_;
  view.evaluations = static_cast<uint32_t>(held_out_.made().size());
  if (const zo_evaluated* const best = held_out_.best(); best != nullptr) {
    view.has_best = 1;
    view.best_step = best->step;
  }
  if (!record_ || !record_->evaluate) {
    return view;
  }
  show_evaluation(record_->before ? record_->before : held_out_.untrained(), view.has_before, view.before);
  if (record_->after || record_->done) {
    show_evaluation(record_->after ? record_->after : held_out_.kept(), view.has_after, view.after);
  }
  return view;
}

std::vector<zo_evaluated> Job::evaluations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return held_out_.made();
}

std::vector<zo_loss_point> Job::losses() const {
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

Result<SessionHandle> Job::session(const zo_open_options& options) const {
  const std::optional<JobRecord> record = this->record();
  if (!record) {
    return Failure{ZO_INVALID_ARGUMENT, "job", "no bundle", "a request", "Start it first."};
  }
  ZO_ASSIGN(session, open_session(*record, options));
  const std::string state = state_of_job(folder_, record->bundle_id);
  if (exists(join(state, "state.json"))) {
    ZO_TRY(call(zo_session_attach, session.get(), state.c_str(), static_cast<int32_t>(ZO_STATE_READ),
                static_cast<const uint64_t*>(nullptr)));
  }
  return session;
}

}  // namespace zoexport
