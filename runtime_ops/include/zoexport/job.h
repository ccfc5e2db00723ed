/* zoexport job: one fine-tuning with a person around it, behind the C ABI of session.h, whose conventions hold here too.
 *
 * An app says which bundle, which examples and how many steps. The job keeps that in its folder, asks before it mixes
 * runs, evaluates before, meanwhile and after, waits while the device is hot, low on power or full, saves and ends where memory is
 * short or the app says so, and goes on in another process. docs/hosts.md describes it.
 *
 * Threads: zo_job_pause, zo_job_view_of, zo_job_losses, zo_job_evaluated and zo_job_problem may be called from any thread, also
 * while another call runs, and from within its callbacks; the others one at a time. A job must not be closed while a call runs.
 */
#ifndef ZOEXPORT_JOB_H_
#define ZOEXPORT_JOB_H_

#include "session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the device ---------------------------------------------------------------------------------------------- */

/* As Apple's ProcessInfo.ThermalState has it. */
enum { ZO_HEAT_UNKNOWN = -1, ZO_HEAT_NOMINAL = 0, ZO_HEAT_FAIR = 1, ZO_HEAT_SERIOUS = 2, ZO_HEAT_CRITICAL = 3 };

/* What the device says of itself. */
typedef struct zo_conditions {
  uint32_t struct_size;
  int32_t heat;          /* one of ZO_HEAT_* */
  double celsius;        /* of the battery; NaN: not known */
  double battery;        /* its charge, 0 to 1; NaN: not known */
  int32_t charging;      /* zero: on battery; -1: not known */
  uint32_t reserved;     /* 0 */
  uint64_t free_bytes;   /* on the disk, where the job's folder is; UINT64_MAX: not known */
  uint64_t memory_bytes; /* that the app may still take before the system ends it; UINT64_MAX: not known */
} zo_conditions;

/* When a job waits. What ends a wait is apart from what begins it, so that a run does not start and stop with every step. */
typedef struct zo_limits {
  uint32_t struct_size;
  int32_t heat;          /* at this one of ZO_HEAT_* and above it waits: ZO_HEAT_SERIOUS */
  double hottest;        /* above it the job waits, in degrees Celsius: 42 */
  double cooled;         /* at or below it the job goes on: 39 */
  double battery;        /* below it the job waits for the charger: 0.2 */
  uint64_t free_bytes;   /* that must be left on the disk: 200 MB */
  uint64_t memory_bytes; /* that must be left to the app: 100 MB */
  double poll_seconds;   /* from one look at the device to the next while it waits: 30 */
} zo_limits;

/* Fills `limits` with the values above. */
ZO_API zo_status zo_limits_default(zo_limits* limits, zo_error* error);

/* ---- examples that a person typed ---------------------------------------------------------------------------- */

/* A prompt and its completion, or a conversation, of which the other form's fields are NULL. */
typedef struct zo_typed_example {
  uint32_t struct_size;
  uint32_t reserved; /* 0 */
  const char* prompt;
  const char* completion;
  const zo_message* messages; /* the last is the assistant's, and is learned */
  size_t message_count;
} zo_typed_example;

/* Writes `count` of them, structs of the same struct_size, as a data file, whole or not at all: in place of one that is there, or,
 * where `append` is non-zero, after its lines. ZO_DATA_ERROR: zo_dataset_read would refuse one, whatever the bundle, or a role is not one of zo_message. */
ZO_API zo_status zo_typed_write(const char* path, const zo_typed_example* examples, size_t count, int32_t append,
                                zo_error* error);

/* ---- a job --------------------------------------------------------------------------------------------------- */

typedef struct zo_job zo_job;

/* Opens the job in `folder`, which is made; what another process left unfinished is there, paused. */
ZO_API zo_status zo_job_open(const char* folder, zo_job** job, zo_error* error);
ZO_API void zo_job_close(zo_job* job);

/* What is to be trained. Paths within the job's folder are kept as such: it may move. */
typedef struct zo_job_request {
  uint32_t struct_size;
  int32_t evaluate;   /* non-zero: loss and accuracy before the first step, and of what is kept of the run */
  const char* bundle; /* the bundle's folder */
  const char* data;   /* examples, as zo_dataset_read takes them */
  const char*
      held_out; /* likewise, to evaluate on, also while it trains (zo_session_train_with); NULL: `data`, and not meanwhile */
  uint64_t steps; /* in total, those of an earlier run of the same state included */
  double lr;      /* 0: that of the run, or of the bundle */
  /* What follows was not there at first, and goes with held_out alone: as zo_train_options has them. */
  uint32_t eval_every;
  uint32_t patience;
  int32_t keep;
  uint32_t reserved; /* 0 */
  /* Neither was this: the engine that all runs of the request take, as zo_open_options has it, in place of the options' own. NULL
   * or empty: those'. Another one goes on with the same state. */
  const char* engine_name;
} zo_job_request;

/* Where the bundle's state has steps of other examples, held-out ones or another rate, or has come to its end: */
enum {
  ZO_JOB_ASK = 0,      /* refuse with ZO_QUESTION, whose message says what the state has */
  ZO_JOB_CONTINUE = 1, /* go on from there with what is asked for now; the state keeps what changed */
  ZO_JOB_ANEW = 2      /* remove that state, and begin at the bundle's own values */
};

/* Checks and keeps a request, for zo_job_run. Bundle and examples are read, so it takes a while. On failure the job is as it
 * was. `options` as zo_session_open has them. */
ZO_API zo_status zo_job_start(zo_job* job, const zo_job_request* request, int32_t answer,
                              const zo_open_options* options, zo_error* error);

/* What only the host knows. Both are called from the thread that runs the job, at least once for every step. */
typedef struct zo_job_host {
  uint32_t struct_size;
  uint32_t reserved; /* 0 */
  void* user;
  /* Fills what it knows; the rest is set to "not known" beforehand. May be NULL: nothing is known. */
  void (*conditions)(void* user, zo_conditions* conditions);
  void (*changed)(void* user); /* zo_job_view_of has something new; may be NULL */
  const zo_limits* limits;     /* NULL: the defaults */
} zo_job_host;

/* Trains until all steps are taken, until zo_job_pause or too little memory ends it after a step, saved, or until it fails.
 * It waits while the device is hot, low on power or full. ZO_OK where the job is done, paused or cancelled. */
ZO_API zo_status zo_job_run(zo_job* job, const zo_job_host* host, const zo_open_options* options, zo_error* error);

/* Why a job does not go on. */
enum {
  ZO_WAIT_NONE = 0,
  ZO_WAIT_ASKED = 1, /* the person paused it */
  ZO_WAIT_HEAT = 2,
  ZO_WAIT_BATTERY = 3,
  ZO_WAIT_DISK = 4,
  ZO_WAIT_MEMORY = 5,    /* the system asks for memory, or the app has little left */
  ZO_WAIT_BACKGROUND = 6 /* the app may not go on where it is */
};

/* Ends the zo_job_run that runs after its step, saved, or where it reads examples or evaluates; `reason` is one of
 * ZO_WAIT_ASKED, ZO_WAIT_MEMORY and ZO_WAIT_BACKGROUND. A zo_job_start that reads examples ends with ZO_CANCELLED. Otherwise it does
 * nothing. */
ZO_API void zo_job_pause(zo_job* job, int32_t reason);

/* Drops the request; its state stays, and a later start may go on with it. What runs ends as by zo_job_pause. */
ZO_API zo_status zo_job_cancel(zo_job* job, zo_error* error);

/* Likewise, and removes the state of the bundle. Refused while zo_job_run runs. */
ZO_API zo_status zo_job_discard(zo_job* job, zo_error* error);

enum {
  ZO_JOB_IDLE = 0,
  ZO_JOB_PREPARING = 1, /* the bundle is opened, the examples are read */
  ZO_JOB_EVALUATING = 2,
  ZO_JOB_TRAINING = 3,
  ZO_JOB_WAITING = 4, /* it goes on by itself */
  ZO_JOB_PAUSED = 5,  /* it goes on with zo_job_run */
  ZO_JOB_FAILED = 6,
  ZO_JOB_DONE = 7
};

typedef struct zo_job_view {
  uint32_t struct_size;
  int32_t phase;  /* one of ZO_JOB_* */
  int32_t reason; /* one of ZO_WAIT_*, of a job that waits or is paused */
  int32_t has_before;
  int32_t has_after;
  uint32_t reserved;
  uint64_t step;
  uint64_t steps;
  uint64_t examples;
  uint64_t shortened;       /* examples that did not fit the bundle's seq_len */
  double loss;              /* of the last step; NaN: none was taken */
  double seconds_left;      /* of the steps that are left; NaN: not known yet */
  double celsius;           /* as the host said last; NaN: not known */
  uint64_t anonymous_bytes; /* the most that was seen during a step; 0: not known */
  zo_evaluation before;     /* where has_before is non-zero */
  zo_evaluation after;      /* where has_after is non-zero */
  double part;              /* of the examples that are read or evaluated on, 0 to 1; NaN: not known, or neither */
  /* What follows was not there at first. */
  uint32_t evaluations; /* of held-out examples while it trained (zo_job_evaluated) */
  uint32_t has_best;
  uint64_t best_step; /* that of the lowest loss of them, where has_best is non-zero */
} zo_job_view;

ZO_API zo_status zo_job_view_of(zo_job* job, zo_job_view* view, zo_error* error);

/* The mean loss of the steps from the point before to `step`. */
typedef struct zo_loss_point {
  uint64_t step;
  double loss;
} zo_loss_point;

/* The losses of the run for a chart: at most 400 points, however many steps there were. `count` is the room at `points`, and
 * becomes their number: more than there was room for means that none was written. */
ZO_API zo_status zo_job_losses(zo_job* job, zo_loss_point* points, size_t* count, zo_error* error);

/* What the run found on its held-out examples, as zo_session_evaluated has it. */
ZO_API zo_status zo_job_evaluated(zo_job* job, uint32_t index, zo_evaluated* evaluated, zo_error* error);

/* Why the job failed, waits or is paused, as a message for the person; `code` is ZO_OK where there is nothing to say. */
ZO_API void zo_job_problem(zo_job* job, zo_error* problem);

/* The request. Strings belong to the job, until the next call of zo_job_start, _cancel or _discard; empty: none. */
ZO_API zo_status zo_job_requested(zo_job* job, zo_job_request* request, zo_error* error);

/* Opens the request's bundle with what was trained so far, the best evaluation's values where the run keeps those, to generate, evaluate or export; also while the job runs. The host
 * closes it. */
ZO_API zo_status zo_job_session(zo_job* job, const zo_open_options* options, zo_session** session, zo_error* error);

#ifdef __cplusplus
}
#endif

#endif /* ZOEXPORT_JOB_H_ */
