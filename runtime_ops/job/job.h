// A job (zoexport/job.h): the life of one fine-tuning around the session, as an app has it. It uses the session through the C
// ABI, as any host does.
#pragma once

#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "job/calls.h"
#include "job/conditions.h"
#include "job/held_out.h"
#include "job/job_record.h"
#include "job/loss_history.h"
#include "session/result.h"
#include "zoexport/job.h"

namespace zoexport {

// The host's callbacks and limits, for the time of a call.
struct JobHost {
  zo_job_host callbacks = {};
  Limits limits = {};

  void changed() const {
    if (callbacks.changed != nullptr) {
      callbacks.changed(callbacks.user);
    }
  }
};

enum class Answer { kAsk, kContinue, kRestart };

class Job {
 public:
  // `folder` is absolute and exists. `options`: those of all sessions; `engine` may be null.
  Job(std::string folder, nlohmann::json options, const zo_engine* engine);

  Status start(const JobRecord& asked, Answer answer);
  Status run(const JobHost& host);
  Status discard();

  // These from any thread.
  Status cancel();
  void pause(Wait reason);
  nlohmann::json view() const;  // as zo_job_view gives it
  std::vector<LossPoint> losses() const;
  Failure problem() const;
  std::optional<JobRecord> record() const;
  Result<SessionHandle> session() const;

 private:
  // Objects that a run has open.
  struct Opened {
    SessionHandle session;
    DatasetHandle data;
    DatasetHandle held_out;  // null: there is no file
  };
  // The examples of a job's files.
  struct Data {
    DatasetHandle train;
    DatasetHandle held_out;  // null: there is no file
    nlohmann::json report;   // of those to train on
  };
  struct View {
    const char* phase = "idle";
    Wait reason = Wait::kNone;
    uint64_t step = 0, steps = 0;
    uint64_t examples = 0, shortened = 0;
    double loss = kNaN;
    double seconds_left = kNaN;
    double celsius = kNaN;
    double part = kNaN;
    uint64_t anonymous_bytes = 0;
    std::string notice;
  };
  // Question to the user about the state of a bundle.
  struct Question {
    Failure message;
    bool nothing_left;  // all the steps were taken
  };

  // User pointer of the session's callbacks, and two callbacks that are zo_on_part.
  struct Part {
    Job* job;
    const JobHost* host;
    // Asks only whether somebody wants it to end.
    static int32_t read(void* user, uint64_t done, uint64_t total);
    // Looks at the device too, and waits. Also of what the reference model scores, before the first step.
    static int32_t evaluated(void* user, uint64_t done, uint64_t total);
  };

  // Marks the job as running, which one call at a time may do.
  Status begin(const char* call);
  // True: it was cancelled meanwhile, and the request is dropped.
  bool end();
  Status take_up(const JobRecord& asked, Answer answer);
  Status run_to_end(const JobHost& host);
  // Opens a session with the engine that was asked for.
  Result<SessionHandle> open_bundle(const JobRecord& job) const;
  Result<Data> read_data(const JobRecord& job, zo_session* session, zo_on_part on_part, void* user) const;
  Result<Opened> open(const JobHost& host);
  // Attaches the state with the request's settings; the losses that it has are in the history.
  Status attach(const Opened& opened);
  // Train; return whether the run came to its end and was not stopped before.
  Result<bool> train(const Opened& opened, const JobHost& host);
  // Keep an evaluation's results in `found`, if requested and still missing; false: it was stopped before its end.
  Result<bool> evaluate(const Opened& opened, const JobHost& host, nlohmann::json JobRecord::* found);
  // Take validation results during training; return whether the run goes on.
  bool evaluated(const nlohmann::json& found, const JobHost& host);
  // Look at the device, and wait while something temporary is in the way. True: the run goes on. False: it ends.
  bool may_go_on(const JobHost& host);
  // After a step: whether the next one may follow at once.
  bool taken(const zo_progress& progress, const JobHost& host);
  zo_conditions look(const JobHost& host);
  Result<std::optional<Question>> question(const JobRecord& asked, const zo_dataset* data,
                                           const zo_dataset* held_out) const;
  Status discard_state(const std::string& bundle_id);
  void show_part(const JobHost& host, uint64_t done, uint64_t total);
  void show(const JobHost& host, const char* phase, Wait reason = Wait::kNone, Failure problem = kNone);
  // Changes the record, and keeps it.
  template <typename Change>
  Status keep(Change change);
  void show_record();
  std::string state() const { return state_of_job(folder_, record_->bundle_id); }

  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  static const Failure kNone;

  const std::string folder_;
  const nlohmann::json options_;
  const std::optional<zo_engine> engine_;
  mutable std::mutex mutex_;  // of what follows; the thread that runs the job reads the record without it
  std::condition_variable asked_;
  std::optional<JobRecord> record_;
  View view_;
  Failure problem_ = kNone;
  LossHistory history_;
  HeldOut held_out_;
  bool running_ = false;
  bool cancelled_ = false;   // nobody goes on with the run that runs
  Wait stop_ = Wait::kNone;  // why it is to end
  double step_seconds_ = 0;  // smoothed; 0: not known yet
};

}  // namespace zoexport
