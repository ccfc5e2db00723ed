// A job (zoexport/job.h): the life of one fine-tuning around the session, as an app has it. It uses the session through the C
// ABI, as any host does.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bindings/handles.h"
#include "job/held_out.h"
#include "job/job_record.h"
#include "job/loss_history.h"
#include "session/result.h"
#include "zoexport/job.h"

namespace zoexport {

// Strings and the structs are the caller's, for the time of the call.
struct JobHost {
  void* user = nullptr;
  void (*conditions)(void* user, zo_conditions* conditions) = nullptr;
  void (*changed)(void* user) = nullptr;
  zo_limits limits;
};

class Job {
 public:
  // `folder` is absolute and there.
  explicit Job(std::string folder);

  Status start(const JobRecord& asked, int32_t answer, const zo_open_options& options);
  Status run(const JobHost& host, const zo_open_options& options);
  Status discard();

  // These from any thread.
  Status cancel();
  void pause(int32_t reason);
  zo_job_view view() const;
  std::vector<zo_loss_point> losses() const;
  std::vector<zo_evaluated> evaluations() const;
  Failure problem() const;
  std::optional<JobRecord> record() const;
  Result<SessionHandle> session(const zo_open_options& options) const;

 private:
  // What a run has open.
  struct Opened {
    SessionHandle session;
    DatasetHandle data;
    DatasetHandle held_out;  // null: of no file
  };
  // What the person has to be asked about the state of a bundle.
  struct Question {
    Failure message;
    bool nothing_left;  // all the steps were taken
  };

  // What the session's callbacks get, and two that are zo_on_part.
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
  Status take_up(const JobRecord& asked, int32_t answer, const zo_open_options& options);
  Status run_to_end(const JobHost& host, const zo_open_options& options);
  Result<Opened> open(const JobHost& host, const zo_open_options& options);
  // Attaches the state with the request's settings; the losses that it has are in the history.
  Status attach(const Opened& opened);
  // Whether the run came to its end, and was not ended before.
  Result<bool> train(const Opened& opened, const JobHost& host);
  // Keeps what an evaluation finds in `found`, where one is asked for and was not made yet; false: it was ended before.
  Result<bool> evaluate(const Opened& opened, const JobHost& host, std::optional<zo_evaluation> JobRecord::* found);
  // What the run finds on held-out examples while it trains: whether it goes on.
  bool evaluated(const zo_evaluated& found, const JobHost& host);
  // Looks at the device, and waits as long as something is in the way that passes. True: the run goes on. False: it ends.
  bool may_go_on(const JobHost& host);
  // After a step: whether the next one may follow at once.
  bool taken(const zo_progress& progress, const JobHost& host);
  zo_conditions look(const JobHost& host);
  Result<std::optional<Question>> question(const JobRecord& asked, zo_session* session, const zo_dataset* data,
                                           const zo_dataset* held_out) const;
  Status discard_state(const std::string& bundle_id);
  void show_part(const JobHost& host, uint64_t done, uint64_t total);
  void show(const JobHost& host, int32_t phase, int32_t reason = ZO_WAIT_NONE, Failure problem = kNone);
  // Changes the record, and keeps it.
  template <typename Change>
  Status keep(Change change);
  void show_record();
  std::string state() const { return state_of_job(folder_, record_->bundle_id); }

  static const Failure kNone;

  const std::string folder_;
  mutable std::mutex mutex_;  // of what follows; the thread that runs the job reads the record without it
  std::condition_variable asked_;
  std::optional<JobRecord> record_;
  zo_job_view view_;
  Failure problem_ = kNone;
  LossHistory history_;
  HeldOut held_out_;
  bool running_ = false;
  bool cancelled_ = false;       // nobody goes on with the run that runs
  int32_t stop_ = ZO_WAIT_NONE;  // why it is to end
  double step_seconds_ = 0;      // smoothed; 0: not known yet
};

}  // namespace zoexport
