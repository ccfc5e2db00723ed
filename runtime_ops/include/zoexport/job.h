/* zoexport job: one fine-tuning in an app, behind the C ABI of session.h, whose conventions hold here too.
 *
 * An app names a bundle, examples and a number of steps. The job stores that in its folder, asks before it mixes runs,
 * evaluates before, during and after training, waits while the device is hot, low on power or full, saves and ends when
 * memory is short or the app asks, and continues in another process. docs/android.md describes it.
 *
 * Threads: zo_job_pause, zo_job_view, zo_job_losses, zo_job_request and zo_job_problem may be called from any thread, also
 * while another call runs, and from within its callbacks; the others one at a time. A job must not be closed while a call
 * runs.
 */
#ifndef ZOEXPORT_JOB_H_
#define ZOEXPORT_JOB_H_

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Levels of ProcessInfo.ThermalState on Apple's systems. */
enum { ZO_HEAT_UNKNOWN = -1, ZO_HEAT_NOMINAL = 0, ZO_HEAT_FAIR = 1, ZO_HEAT_SERIOUS = 2, ZO_HEAT_CRITICAL = 3 };

/* Condition of the device. */
typedef struct zo_conditions {
  int32_t heat;          /* one of ZO_HEAT_* */
  int32_t charging;      /* 0: on battery; -1: not known */
  double celsius;        /* of the battery; NaN: not known */
  double battery;        /* its charge, 0 to 1; NaN: not known */
  uint64_t free_bytes;   /* on the disk of the job's folder; UINT64_MAX: not known */
  uint64_t memory_bytes; /* that the app may still take before the system ends it; UINT64_MAX: not known */
} zo_conditions;

/* Appends examples that a user typed to a data file, or replaces it, completely or not at all. `examples` is a list of
 * {"prompt", "completion"} or {"messages": [{"role", "content"}]}, whose last message is the assistant's. ZO_DATA_ERROR
 * if zo_dataset_read would refuse one for every bundle. */
ZO_API zo_status zo_typed_write(const char* path, const char* examples, int32_t append, zo_error* error);

typedef struct zo_job zo_job;

/* Opens the job in `folder`, which is created; what another process left unfinished is there, paused. Options: "open", for
 * every session of the job; `engine` as in zo_session_open. */
ZO_API zo_status zo_job_open(const char* folder, const char* options, const zo_engine* engine, zo_job** job,
                             zo_error* error);
ZO_API void zo_job_close(zo_job* job);

/* Checks and stores a request, for zo_job_run. Options: "job"; paths within the job's folder are stored relative to it, as
 * the folder may move. Reads bundle and examples, so it takes a while. On failure the job is unchanged. ZO_QUESTION if the
 * state has steps with other examples or settings, or all of them, and `answer` is "ask". */
ZO_API zo_status zo_job_start(zo_job* job, const char* request, zo_error* error);

/* Callbacks of the host, on the thread that runs the job, at least once per step. */
typedef struct zo_job_host {
  void* user;
  /* Fills what it knows; the rest is set to "not known" beforehand. NULL: nothing is known. */
  void (*conditions)(void* user, zo_conditions* conditions);
  void (*changed)(void* user); /* zo_job_view has changed; may be NULL */
} zo_job_host;

/* Trains until all steps are taken, until zo_job_pause or too little memory ends it after a step, saved, or until it fails.
 * Waits while the device is hot, low on power or full. ZO_OK if the job is done, paused or cancelled. Options: "limits".
 * `host` may be NULL. */
ZO_API zo_status zo_job_run(zo_job* job, const char* limits, const zo_job_host* host, zo_error* error);

/* Ends a running zo_job_run after its step, saved, or while it reads examples or evaluates; `reason` is "asked", "memory" or
 * "background". A zo_job_start that reads examples ends with ZO_CANCELLED. Otherwise it does nothing. */
ZO_API void zo_job_pause(zo_job* job, const char* reason);

/* Drops the request; its state stays, and a later start may continue it. What runs ends as by zo_job_pause. */
ZO_API zo_status zo_job_cancel(zo_job* job, zo_error* error);

/* Drops the request and removes the state of its bundle. Refused while zo_job_run runs. */
ZO_API zo_status zo_job_discard(zo_job* job, zo_error* error);

/* Gives what a screen shows: {"phase", "reason", "step", "steps", "examples", "shortened", "loss", "seconds_left",
 * "celsius", "anonymous_bytes", "before", "after", "part", "best_step", "evaluations", "notice"}.
 * phase: "idle", "preparing", "evaluating", "training", "waiting" (continues by itself), "paused" (continues with
 * zo_job_run), "failed" or "done". reason, of a job that waits or is paused: "none", "asked", "heat", "battery", "disk",
 * "memory" or "background". before, after: results of zo_session_evaluate; part: share of the examples that are read or
 * evaluated, 0 to 1; evaluations: as zo_session_evaluations gives them; notice: as zo_progress has it, or empty. */
ZO_API zo_status zo_job_view(zo_job* job, char** view, zo_error* error);

/* Gives the losses of the run for a chart, at most 400: [[step, loss], ...], each the mean of the steps since the one
 * before. */
ZO_API zo_status zo_job_losses(zo_job* job, char** losses, zo_error* error);

/* Why the job failed, waits or is paused; `code` is ZO_OK if there is nothing to say. */
ZO_API void zo_job_problem(zo_job* job, zo_error* problem);

/* Gives the request with absolute paths; null if there is none. */
ZO_API zo_status zo_job_request(zo_job* job, char** request, zo_error* error);

/* Opens the request's bundle with what was trained so far (the best evaluation's weights if the run keeps those), to
 * generate, evaluate or export; also while the job runs. The host closes it. */
ZO_API zo_status zo_job_session(zo_job* job, zo_session** session, zo_error* error);

#ifdef __cplusplus
}
#endif

#endif /* ZOEXPORT_JOB_H_ */
