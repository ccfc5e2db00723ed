/* zoexport session: the training loop behind a C ABI.
 *
 * A host opens a bundle, attaches a state folder, configures a run, and trains or evaluates. docs/session.md is the
 * specification; docs/bundle.md describes the bundle.
 *
 * Conventions
 * - Every verb returns a zo_status; ZO_OK is 0. On failure it fills `error` (which may be NULL) and changes nothing
 *   beyond what its comment says. No exception and no longjmp crosses this boundary.
 * - Handles are opaque, owned by the caller, and freed by their `_close` or `_free`, which accept NULL. A handle is
 *   used by one thread at a time, zo_session_cancel apart; different handles are independent. A call on a session from
 *   within one of its own callbacks is refused; closing it there takes effect when the call that runs returns.
 * - Strings are UTF-8 and zero-terminated. Pointers handed out stay valid until the next call on the same handle.
 * - A struct that may grow starts with `struct_size`, which the caller sets to sizeof, also of one that is filled. Of an
 *   older caller's shorter struct the missing fields are defaults, or not filled; of a newer caller's longer one the
 *   fields that this library does not know must be zero, and are filled with zero. In a struct that a callback gets, the
 *   library sets it.
 */
#ifndef ZOEXPORT_SESSION_H_
#define ZOEXPORT_SESSION_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define ZO_API __declspec(dllexport)
#else
#define ZO_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ZO_ABI_VERSION 2u

typedef int32_t zo_status;
enum {
  ZO_OK = 0,
  ZO_INVALID_ARGUMENT = 1, /* a call or a setting that cannot be used */
  ZO_BUNDLE_ERROR = 2,     /* a bundle that is missing, altered, or of another version */
  ZO_STATE_ERROR = 3,      /* a state that is missing, damaged, locked, full, or of another bundle */
  ZO_DATA_ERROR = 4,       /* examples that cannot be used */
  ZO_ENGINE_ERROR = 5,     /* a program that could not be loaded or run */
  ZO_DIVERGED = 6,         /* the loss left its range; the last good state is kept */
  ZO_CANCELLED = 7,        /* the progress callback or zo_session_cancel asked to stop; what was reached is saved */
  ZO_INTERNAL_ERROR = 8,   /* a defect or exhausted memory */
  ZO_QUESTION = 9          /* of a job (job.h): the person has to say which of two things is meant */
};

/* One message: what is at fault, what is there, what should be there, what to do. Always zero-terminated. */
typedef struct zo_error {
  int32_t code;
  char where[512];
  char found[1024];
  char expected[512];
  char fix[512];
} zo_error;

ZO_API uint32_t zo_abi_version(void);

/* How much of something long is done, at most some twenty times a second; a non-zero answer ends it with ZO_CANCELLED. */
typedef int32_t (*zo_on_part)(void* user, uint64_t done, uint64_t total);

/* ---- engines ------------------------------------------------------------------------------------------------- */

enum {
  ZO_FLOAT32 = 0,
  ZO_INT64 = 1,
  ZO_UINT8 = 2,
  ZO_BFLOAT16 = 3,
  ZO_INT8 = 4,
  ZO_UINT32 = 5,
  ZO_FLOAT16 = 6,
  ZO_INT32 = 7
};

/* A contiguous row-major tensor; all pointers belong to the session and are valid during the call only. */
typedef struct zo_tensor {
  const char* name;
  int32_t dtype;
  int32_t rank;
  const int64_t* shape;
  void* data;
  size_t bytes;
} zo_tensor;

/* Runs `program`: reads `inputs`, fills `outputs` (already of the right shape), both in the manifest's order. An output
 * that this call does not need has `data` NULL. Returns 0, or another number after writing a zero-terminated reason into
 * `message`. */
typedef int32_t (*zo_run_program)(void* user, const char* program, const zo_tensor* inputs, size_t input_count,
                                  const zo_tensor* outputs, size_t output_count, char* message, size_t message_size);

/* An engine that the host supplies, for example Core ML. */
typedef struct zo_engine {
  uint32_t struct_size;
  void* user;
  zo_run_program run;
} zo_engine;

/* ---- bundles as one file ------------------------------------------------------------------------------------- */

typedef struct zo_unpack_options {
  uint32_t struct_size;
  uint32_t replace;         /* non-zero: what is at the folder gives way, once the new one is whole */
  const char* trusted_keys; /* as zo_open_options has them */
  zo_on_part on_progress;   /* of the bytes that are written; may be NULL */
  void* user;
} zo_unpack_options;

/* Writes the bundle in a file that `zoexport pack` made to `folder`, whole or not at all. The signature is checked before
 * anything is parsed, hashes while it is copied. `options` may be NULL. */
ZO_API zo_status zo_bundle_unpack(const char* file, const char* folder, const zo_unpack_options* options,
                                  zo_error* error);

/* ---- sessions ------------------------------------------------------------------------------------------------ */

typedef struct zo_session zo_session;

typedef struct zo_open_options {
  uint32_t struct_size;
  uint32_t
      threads; /* 0: the engine's own choice. ExecuTorch has one pool of threads for all sessions of a process: another
                       number is refused while a session has programs */
  uint32_t skip_hashes;    /* non-zero: check file sizes only */
  const zo_engine* engine; /* copied; NULL: the engine that the manifest names */
  const char* cache;       /* folder of packed weights (docs/session.md); NULL: the user's own; "": none */
  /* minisign public keys in base64, one a line, as in .pub files. One of them must have signed the bundle (docs/bundle.md),
   * or it is refused before any of it is parsed; skip_hashes is then of no effect, and files that the host reads by itself
   * are hashed when the bundle is opened. NULL: any bundle. */
  const char* trusted_keys;
  /* Which of the engines that a bundle has programs for: a name of the manifest's `engine` or `fallback` (docs/bundle.md).
   * NULL: the manifest's engine. */
  const char* engine_name;
  uint32_t kernel_times; /* non-zero: zo_kernel_cost has seconds, where the engine counts and the device has a clock */
} zo_open_options;

/* Opens the bundle folder. `options` may be NULL. */
ZO_API zo_status zo_session_open(const char* bundle, const zo_open_options* options, zo_session** session,
                                 zo_error* error);

/* The engines that a bundle has programs for, as zo_open_options.engine_name takes them. */
typedef struct zo_engines {
  uint32_t struct_size;
  char own[64];      /* the manifest's */
  char fallback[64]; /* the one for where that has no device; empty: none */
} zo_engines;

/* Reads the manifest alone: also of a bundle whose own engine cannot be had here. `options` may be NULL; trusted_keys is read of
 * them. */
ZO_API zo_status zo_bundle_engines(const char* bundle, const zo_open_options* options, zo_engines* engines,
                                   zo_error* error);

/* Frees the session and releases its state's lock. Saves nothing that zo_session_save would not find again. */
ZO_API void zo_session_close(zo_session* session);

/* Strings belong to the session. */
typedef struct zo_info {
  uint32_t struct_size;
  const char* bundle_id; /* 64 hexadecimal digits */
  const char* method;
  const char* target;
  const char* engine;
  uint32_t rows;
  uint32_t seq_len;
  uint32_t copies;
  uint32_t queries;
  uint32_t max_labels;
  uint32_t slots;
  uint64_t seed;              /* the state's, or what the run is configured with */
  uint64_t steps;             /* records of the trajectory: steps taken in total */
  const char* packed_weights; /* the file that they are mapped from; "" before the first program runs, or without one */
  const char* packed_problem; /* why there is no such file; "" where there is one or none was asked for */
  uint64_t device_bytes; /* of a device's own buffers that the engine has made so far; 0 of an engine without any */
} zo_info;

ZO_API zo_status zo_session_info(zo_session* session, zo_info* info, zo_error* error);

/* Strings and shape belong to the session. */
typedef struct zo_slot_info {
  uint32_t struct_size;
  const char* name;
  const char* role; /* "trainable", "frozen", ... */
  const char* module;
  uint32_t tensor_id;
  int32_t rank;
  const int64_t* shape;
  uint64_t elements;
  int32_t dtype; /* one of ZO_FLOAT32, ...; uint8 are integers of 4 bits, two an element */
} zo_slot_info;

ZO_API zo_status zo_session_slot(zo_session* session, uint32_t index, zo_slot_info* slot, zo_error* error);

/* The slot with this name. */
ZO_API zo_status zo_session_find_slot(zo_session* session, const char* name, zo_slot_info* slot, zo_error* error);

/* What a program has cost this session so far. `name` belongs to the session. */
typedef struct zo_program_cost {
  uint32_t struct_size;
  const char* name;
  uint64_t calls;
  double seconds;      /* in the engine */
  double load_seconds; /* checking its file and loading it; 0 before its first call */
} zo_program_cost;

/* Program `index` of those that a session runs; ZO_INVALID_ARGUMENT beyond the last. A progress callback may ask too. */
ZO_API zo_status zo_session_program_cost(zo_session* session, uint32_t index, zo_program_cost* cost, zo_error* error);

/* What an engine's kernels of one kind have cost this session so far, over all programs. `name` belongs to the session. */
typedef struct zo_kernel_cost {
  uint32_t struct_size;
  const char* name;
  uint64_t dispatches;
  double seconds; /* on the device; NaN where zo_open_options.kernel_times was zero, or the device does not say */
  double flops;   /* by their sizes: an addition, a multiplication, a function such as exp is one */
  double bytes;   /* of what they read and write, each counted once */
} zo_kernel_cost;

/* Kind `index`, also of those that have not run; ZO_INVALID_ARGUMENT beyond the last. The engine vulkan alone counts. */
ZO_API zo_status zo_session_kernel_cost(zo_session* session, uint32_t index, zo_kernel_cost* cost, zo_error* error);

enum { ZO_STATE_READ = 0, ZO_STATE_TRAIN = 1 };

/* Attaches a state folder, before any step. ZO_STATE_TRAIN resumes it, or creates it where there is none, and holds its
 * lock until close; ZO_STATE_READ needs one that exists, takes no lock and writes nothing. `seed` (may be NULL) is the
 * seed of a new state and must equal that of an existing one; NULL: the existing one's, or the manifest's. */
ZO_API zo_status zo_session_attach(zo_session* session, const char* folder, int32_t mode, const uint64_t* seed,
                                   zo_error* error);

typedef struct zo_attach_options {
  uint32_t struct_size;
  int32_t mode;             /* ZO_STATE_READ or ZO_STATE_TRAIN */
  const uint64_t* seed;     /* as zo_session_attach has it */
  uint32_t recover;         /* non-zero: go on from the last good record of a damaged log, of which a copy is kept */
  uint32_t change_settings; /* non-zero: steps may be taken with other settings or examples than those before; the state
                               keeps what changed */
  uint32_t last;            /* non-zero, for reading: the values of the last step, also of a run that keeps its best */
} zo_attach_options;

/* Likewise, with more to choose. A log that is damaged where whole records follow is refused unless `recover` is given, as no
 * abrupt end leaves one. The state's settings become those of the run (zo_session_run); see zo_session_train for what must
 * stay as it was. A state that this made goes again with the session where its first configure, step or train fails. */
ZO_API zo_status zo_session_attach_with(zo_session* session, const char* folder, const zo_attach_options* options,
                                        zo_error* error);

/* Describes a state folder without its bundle, as a zero-terminated JSON object (docs/session.md), and changes nothing. `size`
 * is the room at `text`, and becomes what is needed, the terminator included: more than there was means that nothing was
 * written, and `text` may be NULL then. */
ZO_API zo_status zo_state_describe(const char* folder, char* text, size_t* size, zo_error* error);

/* The devices of Vulkan that bundles of the engine vulkan could run on, as a zero-terminated JSON list of objects with `name`,
 * `kind` ("integrated", "discrete", "virtual", "cpu" or "other"), `version` of Vulkan, `problem`, why a device cannot run
 * them, or "", and `lacks`, what some of them need, or "". `size` as above. */
ZO_API zo_status zo_vulkan_devices(char* text, size_t* size, zo_error* error);

enum { ZO_SCHEDULE_CONSTANT = 0, ZO_SCHEDULE_LINEAR = 1, ZO_SCHEDULE_COSINE = 2 };
/* The last two are of pairs of a chosen and a rejected answer (docs/preferences.md). */
enum { ZO_LOSS_FULL = 0, ZO_LOSS_CHOICES = 1, ZO_LOSS_DPO = 2, ZO_LOSS_ORPO = 3 };
/* What an example's choices are compared by: the sum of their tokens' log-probabilities, or the mean. */
enum { ZO_CHOICES_SUM = 0, ZO_CHOICES_MEAN = 1 };
/* What a projected gradient is: (l(w + eps z) - l(w - eps z)) / (2 eps), or (l(w + eps z) - l(w)) / eps. */
enum { ZO_DIFFERENCE_CENTRAL = 0, ZO_DIFFERENCE_FORWARD = 1 };

typedef struct zo_run {
  uint32_t struct_size;
  int32_t schedule;
  int32_t loss;
  uint32_t batch;      /* examples in one batch */
  uint32_t accumulate; /* batches for one update */
  double lr;
  double eps;
  uint64_t seed;        /* with a state or after a step: must be the seed it has */
  uint64_t total_steps; /* N of the schedule for zo_session_step; zo_session_train uses its own */
  /* Of first-order methods; zero, and checkpoint_every anything, for others. */
  double momentum; /* SGD's */
  double weight_decay;
  double clip;               /* the largest norm of an update's gradient; 0: any */
  uint32_t checkpoint_every; /* stages from one kept activation to the next */
  uint32_t reserved;       /* what follows was not there at first; ignored, so that older hosts' padding is no value */
  int32_t difference;      /* of zeroth-order methods; a choice where one copy goes through the model at a time */
  uint32_t reserved_too;   /* likewise */
  uint32_t warmup;         /* steps over which the rate rises to lr; the schedule begins after them */
  uint32_t reserved_three; /* likewise */
  double dpo_beta;         /* of ZO_LOSS_DPO: how much a log-ratio to the reference model counts */
  double orpo_beta;        /* of ZO_LOSS_ORPO: the weight of the odds ratio beside the chosen answer's own loss */
  int32_t choices;         /* one of ZO_CHOICES_* */
  int32_t pack;            /* non-zero: texts fill rows of seq_len one after another (zo_dataset_read_with) */
  uint32_t keep_mb; /* of first-order methods: most 10^6 bytes of a mapped file in which products' results wait for
                            * the backward pass, which computes those of other stages again; 0: of all */
  uint32_t cache_prefix_mb; /* most 10^6 bytes of a file in which rows are kept as they leave the layers below the first
                             * that reads a slot, so that later epochs need not run these; 0: none */
} zo_run;

/* Fills `run` with the run that is configured: at first the manifest's settings, and with a state its seed and, if it is
 * attached for training and its run has begun, its settings. */
ZO_API zo_status zo_session_run(zo_session* session, zo_run* run, zo_error* error);
ZO_API zo_status zo_session_configure(zo_session* session, const zo_run* run, zo_error* error);

/* ---- examples ------------------------------------------------------------------------------------------------ */

typedef struct zo_dataset zo_dataset;

/* `labels[t]` is the token that follows `tokens[t]`, or -100 where nothing is predicted. */
typedef struct zo_candidate {
  const int64_t* tokens;
  const int64_t* labels;
  size_t length;
} zo_candidate;

ZO_API zo_dataset* zo_dataset_new(void);
ZO_API void zo_dataset_free(zo_dataset* dataset);
ZO_API uint64_t zo_dataset_size(const zo_dataset* dataset);

/* Appends one example; everything is copied. `target` is the index of the right candidate. */
ZO_API zo_status zo_dataset_add(zo_dataset* dataset, const zo_candidate* candidates, size_t count, size_t target,
                                zo_error* error);

/* SHA-256 of all examples in their order, as the state of a run keeps it: 64 hexadecimal digits and a zero. */
ZO_API zo_status zo_dataset_digest(const zo_dataset* dataset, char digest[65], zo_error* error);

/* Appends the examples of a JSON Lines file (docs/session.md). On failure nothing is appended. */
ZO_API zo_status zo_dataset_load(zo_dataset* dataset, const char* path, zo_error* error);

/* Writes all examples as such a file, whole or not at all. */
ZO_API zo_status zo_dataset_write(const zo_dataset* dataset, const char* path, zo_error* error);

/* ---- training ------------------------------------------------------------------------------------------------ */

/* What one step computed. Arrays belong to the session: `losses` has 2 * queries values, loss(2i) and loss(2i+1) being
 * those of +z_i and -z_i; `gradients` has queries values. With split perturbations (docs/spzo.md) `losses` are those of the
 * second block's directions alone. With forward differences there are queries + 1: loss(0) is that of no perturbation and
 * loss(i + 1) that of +z_i. A first-order method has one loss, and no gradients here. */
typedef struct zo_step {
  uint32_t struct_size;
  uint64_t step;
  double loss; /* mean of `losses` */
  double lr;
  double seconds;
  const double* losses;
  size_t loss_count;
  const float* gradients;
  size_t gradient_count;
} zo_step;

/* One step on the given examples, in this order. Of the run's settings and examples, the settings alone are kept and compared
 * (zo_session_train): the host chooses the examples. */
ZO_API zo_status zo_session_step(zo_session* session, const zo_dataset* dataset, const uint64_t* indices, size_t count,
                                 zo_step* step, zo_error* error);

typedef struct zo_progress {
  uint32_t struct_size;
  uint64_t step; /* steps taken in total, this one included */
  uint64_t total;
  double loss;
  double lr;
  double seconds;
  uint64_t rss_bytes;       /* now; 0 where the system does not say */
  uint64_t anonymous_bytes; /* the most that was seen during the step; likewise */
} zo_progress;

/* Called after every step; a non-zero answer stops the run after saving. */
typedef int32_t (*zo_on_progress)(void* user, const zo_progress* progress);

/* Trains until the state has `total_steps` steps, then saves. `on_progress` may be NULL. Settings on which steps depend
 * (`total_steps` with a schedule that is not constant among them) and the examples, by their digest, are kept in the state: a
 * run that has begun is refused with others, unless the state was attached with change_settings. With ZO_LOSS_DPO the scores of
 * the reference model, the bundle's own values, are computed before the first step, and kept in the state. */
ZO_API zo_status zo_session_train(zo_session* session, const zo_dataset* dataset, uint64_t total_steps,
                                  zo_on_progress on_progress, void* user, zo_error* error);

/* What a run found on its held-out examples. */
typedef struct zo_evaluated {
  uint32_t struct_size;
  uint32_t best; /* non-zero: its loss is the lowest of the run so far, step 0 apart */
  uint64_t step; /* steps that were taken before */
  double loss;
  double accuracy; /* NaN where no example has choices */
  double token_accuracy;
  double margin; /* NaN but for the losses of pairs */
} zo_evaluated;

/* Called after every evaluation of held-out examples; a non-zero answer stops the run after saving. */
typedef int32_t (*zo_on_evaluated)(void* user, const zo_evaluated* evaluated);

enum { ZO_KEEP_DEFAULT = 0, ZO_KEEP_LAST = 1, ZO_KEEP_BEST = 2 };

typedef struct zo_train_options {
  uint32_t struct_size;
  uint32_t every; /* steps from one evaluation to the next; 0: as the run has it, or a tenth of total_steps */
  uint32_t
      patience; /* evaluations in a row without a lower loss, after which training ends; 0: as the run has it, or never */
  int32_t keep; /* one of ZO_KEEP_*: which values who reads the state gets; the default: as the run has it, or best */
  uint64_t total_steps;
  const zo_dataset* held_out; /* NULL: nothing is evaluated, and the three before are of no effect */
  zo_on_progress on_progress;
  zo_on_evaluated on_evaluated;
  /* Of the examples of an evaluation, and of those that the reference model scores for ZO_LOSS_DPO before the first step. */
  zo_on_part on_part;
  void* user; /* the three callbacks may be NULL */
} zo_train_options;

/* zo_session_train that evaluates before the first step, every so many steps and after the last. The state keeps what it found
 * and the values of the best evaluation, and by digest the held-out examples: a run that has begun is refused with others, or
 * without, unless the state was attached with change_settings. It has fewer steps than asked for where patience ended it. */
ZO_API zo_status zo_session_train_with(zo_session* session, const zo_dataset* dataset, const zo_train_options* options,
                                       zo_error* error);

/* Evaluation `index` of the run, in the order of steps; ZO_INVALID_ARGUMENT beyond the last. */
ZO_API zo_status zo_session_evaluated(zo_session* session, uint32_t index, zo_evaluated* evaluated, zo_error* error);

/* Ends the zo_session_train that runs, from any thread or from a signal handler: it finishes its step, saves, and returns
 * ZO_CANCELLED; likewise a zo_session_evaluate or zo_session_generate. Without one that runs it does nothing. The session must
 * not be closed meanwhile. */
ZO_API void zo_session_cancel(zo_session* session);

typedef struct zo_evaluation {
  uint32_t struct_size;
  double loss;
  double accuracy; /* NaN where no example has choices */
  double token_accuracy;
  uint64_t examples;
  double margin; /* of the losses of pairs: the mean of by how much the chosen answer is preferred; NaN for others */
} zo_evaluation;

/* Evaluates the master weights, the pending update applied, with the configured loss. Changes no state. `on_part` is told of
 * the examples, and may be NULL. */
ZO_API zo_status zo_session_evaluate(zo_session* session, const zo_dataset* dataset, zo_on_part on_part, void* user,
                                     zo_evaluation* evaluation, zo_error* error);

/* ---- generation ---------------------------------------------------------------------------------------------- */

/* Why no token follows: a stop token, the most tokens or the bundle's context, the callback, or a stop string. */
enum { ZO_STOP_TOKEN = 0, ZO_STOP_LENGTH = 1, ZO_STOP_CALLER = 2, ZO_STOP_STRING = 3 };

typedef struct zo_message {
  const char* role; /* "system", "user" or "assistant" */
  const char* content;
} zo_message;

/* Called with pieces of the text that follows, in UTF-8 and never a part of a character; a non-zero answer ends the
 * generation. */
typedef int32_t (*zo_on_text)(void* user, const char* text, size_t size);

/* How to generate (docs/generate.md). Zero in fields from `temperature` on chooses the most likely token each time. The prompt
 * is one of `prompt`, `text` and `messages`. With one of the latter two, a stop string or `on_text`, the bundle's tokenizer
 * (docs/text.md) makes the text. */
typedef struct zo_generate_options {
  uint32_t struct_size;
  uint32_t max_tokens;   /* after the prompt, at least 1 */
  const int64_t* prompt; /* tokens, at least one, fewer than the bundle's generate.context */
  size_t prompt_length;
  const int64_t* stop_tokens; /* NULL: the bundle's; after messages those of its turns too */
  size_t stop_count;
  double temperature;
  uint32_t top_k;     /* 0: all */
  uint32_t untrained; /* non-zero: the slots as the bundle has them, whatever was trained */
  double top_p;       /* 0: 1 */
  double min_p;
  double repetition_penalty; /* 0: 1 */
  uint64_t seed;
  /* What follows was not there at first. */
  const char* text; /* UTF-8, of text_size bytes */
  size_t text_size;
  const zo_message* messages; /* a conversation, which the model's chat template writes up to the assistant's answer */
  size_t message_count;
  const char* const* stop_strings; /* the text ends before the first of them; none is empty */
  size_t stop_string_count;
  zo_on_text on_text;  /* gets the `user` of the call */
  const char* adapter; /* the name of a loaded one, in place of what the session trained; NULL: none */
  uint32_t keep;       /* non-zero: keep the caches, so that a longer prompt that begins alike is read from there on */
  uint32_t sliding;    /* non-zero: past the context go on over the last part of the tokens */
} zo_generate_options;

typedef struct zo_generation {
  uint32_t struct_size;
  int32_t stop; /* one of ZO_STOP_* */
  uint64_t prompt_tokens;
  uint64_t tokens; /* that followed, those of a stop string among them; a stop token is not */
  double prefill_seconds;
  double decode_seconds;    /* from the first token that follows the prompt */
  uint64_t anonymous_bytes; /* the most that was seen meanwhile; 0 where the system does not say */
  const char* text;         /* what followed, up to a stop string; the session's. NULL: no text was asked for */
  size_t text_size;
  uint64_t kept_tokens; /* of the prompt, that were read before (zo_generate_options.keep) */
} zo_generation;

/* Called with each token that follows; a non-zero answer ends the generation. */
typedef int32_t (*zo_on_token)(void* user, int64_t token);

/* Generates with the master weights, the pending update applied, as zo_session_evaluate sees them. Changes no state. A bundle
 * without programs that generate: ZO_BUNDLE_ERROR, which says why. What this keeps for the next call, the caches and the
 * tokenizer, goes when a step is taken, or with zo_session_forget. */
ZO_API zo_status zo_session_generate(zo_session* session, const zo_generate_options* options, zo_on_token on_token,
                                     void* user, zo_generation* generation, zo_error* error);

/* Frees what zo_session_generate keeps between calls. */
ZO_API zo_status zo_session_forget(zo_session* session, zo_error* error);

/* ---- named adapters ------------------------------------------------------------------------------------------- */

/* Values of slots under a name, beside those of the run: for generation alone, and in no state. A slot that was not given has
 * the bundle's value. */

/* Loads an adapter in PEFT's form, the folder that `zoexport adapter export` writes, in place of one of the same name. One that
 * does not fit is refused: ZO_STATE_ERROR, and nothing changes. */
ZO_API zo_status zo_session_load_adapter(zo_session* session, const char* name, const char* folder, zo_error* error);

/* Gives one slot of the adapter of this name, which is made where there is none, its values (zo_session_write_slot). */
ZO_API zo_status zo_session_write_adapter(zo_session* session, const char* name, const char* slot, const float* values,
                                          size_t count, zo_error* error);
ZO_API zo_status zo_session_write_adapter_bytes(zo_session* session, const char* name, const char* slot,
                                                const void* bytes, size_t size, zo_error* error);

/* Frees an adapter. */
ZO_API zo_status zo_session_drop_adapter(zo_session* session, const char* name, zo_error* error);

/* The name of adapter `index`, in the order of their names; it belongs to the session. ZO_INVALID_ARGUMENT beyond the last. */
ZO_API zo_status zo_session_adapter(zo_session* session, uint32_t index, const char** name, zo_error* error);

/* ---- adapters' files ------------------------------------------------------------------------------------------ */

/* A folder of adapter_config.json and adapter_model.safetensors, for PEFT; one GGUF file, for llama.cpp (docs/adapters.md). */
enum { ZO_ADAPTER_PEFT = 0, ZO_ADAPTER_GGUF = 1 };
/* The numbers of a GGUF file. Rows of Q8_0 that are no multiple of 32 are F16. */
enum { ZO_OUTTYPE_F32 = 0, ZO_OUTTYPE_F16 = 1, ZO_OUTTYPE_Q8_0 = 2 };

typedef struct zo_export_options {
  uint32_t struct_size;
  int32_t format;   /* one of ZO_ADAPTER_* */
  int32_t outtype;  /* one of ZO_OUTTYPE_*; ZO_OUTTYPE_F32 where the format is PEFT's */
  uint32_t replace; /* non-zero: what is at the path gives way, once all is written */
} zo_export_options;

/* Writes what the session trained, the pending update applied, to `path`, whole or not at all. Changes no state. A bundle that
 * trains no adapter of floats, a path that exists or cannot be written, numbers that are not finite or beyond the type:
 * ZO_INVALID_ARGUMENT. A bundle without llama.cpp's names for its layers: ZO_BUNDLE_ERROR, which says why. */
ZO_API zo_status zo_session_export_adapter(zo_session* session, const zo_export_options* options, const char* path,
                                           zo_error* error);

/* One adapted layer: y += x A B scale. Matrices are row-major. */
typedef struct zo_adapter_layer {
  const char* module; /* PEFT: its path in the Hugging Face model */
  const char* weight; /* GGUF: llama.cpp's name of it, such as blk.0.attn_q.weight */
  uint64_t inputs;
  uint64_t rank;
  uint64_t outputs;
  const float* a; /* (inputs, rank) */
  const float* b; /* (rank, outputs) */
  /* GGUF: the order of its outputs in llama.cpp (docs/bundle.md); zeros: as they are. */
  uint32_t pairs;  /* heads whose two halves are interleaved */
  uint32_t groups; /* of some heads' queries, a key and a value, which become all queries, all keys, all values */
  uint32_t width;  /* outputs of a head of these groups */
} zo_adapter_layer;

typedef struct zo_adapter {
  uint32_t struct_size;
  const zo_adapter_layer* layers;
  size_t layer_count;
  const char* description;  /* PEFT: the text of adapter_config.json */
  const char* architecture; /* GGUF: llama.cpp's name of the base model's */
  const char* base_model;   /* GGUF: the base model's own name; NULL: none */
  float alpha;              /* GGUF: llama.cpp scales each layer by alpha / rank */
} zo_adapter;

/* Likewise writes an adapter that is no session's. */
ZO_API zo_status zo_adapter_write(const zo_adapter* adapter, const zo_export_options* options, const char* path,
                                  zo_error* error);

/* Where the matrices of a layer of zo_adapter_read are put. */
typedef struct zo_adapter_room {
  const char* module; /* its path in the Hugging Face model */
  uint64_t inputs;
  uint64_t rank;
  uint64_t outputs;
  float* a; /* (inputs, rank), row-major */
  float* b; /* (rank, outputs) */
} zo_adapter_room;

/* Reads an adapter in PEFT's form that has these layers, of these sizes and of the scales that `description`, the text of an
 * adapter_config.json, gives them, and nothing else. One that does not fit, or is damaged, or has numbers that are not finite:
 * ZO_STATE_ERROR, and nothing is filled. */
ZO_API zo_status zo_adapter_read(const char* folder, const char* description, const zo_adapter_room* layers,
                                 size_t count, zo_error* error);

/* ---- state --------------------------------------------------------------------------------------------------- */

enum {
  ZO_SLOT_CURRENT = 0,  /* as the last step evaluated it */
  ZO_SLOT_FINISHED = 1, /* with the pending update applied: what export and evaluation use */
  ZO_SLOT_GRADIENT = 2  /* the last step's gradient by a trainable slot, before clipping: first-order methods */
};

/* Values of slots that are float32 or float16 in the bundle, in memory and in files pass here as float32. Those of a float16
 * slot are converted exactly when they are read, and rounded to nearest, ties to even, when they are written. A slot of
 * any dtype can be passed as its bytes, by the calls that end in _bytes; one of integers only so. */

/* Copies a slot's values; `count` must be its number of elements. */
ZO_API zo_status zo_session_read_slot(zo_session* session, const char* name, int32_t which, float* values, size_t count,
                                      zo_error* error);
/* Its values as they lie in memory; `size` must be their bytes. Gradients do not pass so. */
ZO_API zo_status zo_session_read_slot_bytes(zo_session* session, const char* name, int32_t which, void* bytes,
                                            size_t size, zo_error* error);

/* Replaces a slot's initial value (an imported adapter), before the first step. */
ZO_API zo_status zo_session_write_slot(zo_session* session, const char* name, const float* values, size_t count,
                                       zo_error* error);
/* No value of an int8 slot may be -128. */
ZO_API zo_status zo_session_write_slot_bytes(zo_session* session, const char* name, const void* bytes, size_t size,
                                             zo_error* error);

/* Like zo_session_read_slot, but recomputed from the initial values and the first `updates` records alone. Records of a
 * first-order method do not tell how: ZO_INVALID_ARGUMENT. */
ZO_API zo_status zo_session_replay_slot(zo_session* session, const char* name, uint64_t updates, float* values,
                                        size_t count, zo_error* error);
ZO_API zo_status zo_session_replay_slot_bytes(zo_session* session, const char* name, uint64_t updates, void* bytes,
                                              size_t size, zo_error* error);

/* Record `index` of the trajectory log; `gradients` (may be NULL) receives zo_info.queries values. */
typedef struct zo_record {
  uint32_t struct_size;
  uint64_t step;
  float lr;
  float eps;
  float loss;
} zo_record;

ZO_API zo_status zo_session_record(zo_session* session, uint64_t index, zo_record* record, float* gradients,
                                   zo_error* error);

/* Goes on as if the session had taken these steps itself, and runs no program: the records are appended, their updates
 * applied, and snapshots written where zo_session_train would have written them, the one at the end included. Afterwards
 * slots, log and state folder are those of the session that took the steps, bit for bit, if both began with the same
 * values and seed. `records` are `count` structs of the same struct_size, the first with the step that the session is to
 * take next; `gradients` has zo_info.queries values of each. Records that training cannot have made (numbers that are not
 * finite, another step, what divergence would have stopped) are refused, all of them, before anything changes. Records of a
 * first-order method do not tell how: ZO_INVALID_ARGUMENT. */
ZO_API zo_status zo_session_follow(zo_session* session, const zo_record* records, const float* gradients, size_t count,
                                   zo_error* error);

/* Writes a snapshot and syncs the log. Without a state folder: ZO_STATE_ERROR. */
ZO_API zo_status zo_session_save(zo_session* session, zo_error* error);

/* ---- text ---------------------------------------------------------------------------------------------------- */

/* A bundle's tokenizer (docs/text.md), which needs no session. */
typedef struct zo_tokenizer zo_tokenizer;

/* Opens the tokenizer of a bundle folder. `options` may be NULL; skip_hashes and trusted_keys are read of them. */
ZO_API zo_status zo_tokenizer_open(const char* bundle, const zo_open_options* options, zo_tokenizer** tokenizer,
                                   zo_error* error);
ZO_API void zo_tokenizer_close(zo_tokenizer* tokenizer);

/* Results of these are copied to where the caller has room: `count` or `size` is the room, and becomes what is needed. More
 * than there was means that nothing was written; without room the place may be NULL. A text's end is its size: it is not
 * zero-terminated, and may have zeros. */

/* Tokens of a text in UTF-8. `special` non-zero: with those that the tokenizer writes around it. Special tokens that the text
 * names are found in any case. `size` + 64 tokens are room enough. */
ZO_API zo_status zo_tokenizer_encode(zo_tokenizer* tokenizer, const char* text, size_t size, int32_t special,
                                     int64_t* tokens, size_t* count, zo_error* error);
/* Text of tokens. `special` zero: without special ones. */
ZO_API zo_status zo_tokenizer_decode(zo_tokenizer* tokenizer, const int64_t* tokens, size_t count, int32_t special,
                                     char* text, size_t* size, zo_error* error);

/* A conversation as the model's chat template writes it, to be tokenized without `special`. `reply` non-zero: up to where the
 * assistant's answer begins. */
ZO_API zo_status zo_tokenizer_chat(zo_tokenizer* tokenizer, const zo_message* messages, size_t count, int32_t reply,
                                   char* text, size_t* size, zo_error* error);

typedef struct zo_read_options {
  uint32_t struct_size;
  int32_t loss; /* with ZO_LOSS_CHOICES an example without choices is a failure, with ZO_LOSS_DPO and ZO_LOSS_ORPO one
                   that is no pair */
  int32_t pack; /* non-zero: what is compared with nothing fills rows of seq_len, each an example of the data set; long
                   texts are divided and not cut (docs/packing.md). Not of a bundle of a masked language model. */
} zo_read_options;

typedef struct zo_read_report {
  uint32_t struct_size;
  uint64_t examples;  /* of the file */
  uint64_t shortened; /* of them, those that did not fit the bundle's seq_len */
  uint64_t longest;   /* tokens of the longest, before it was shortened */
  char note[512];     /* sentences to show before the first step, such as how many were shortened; or empty */
} zo_read_report;

/* Appends the examples of a data file as people write them (docs/cli.md, "Data"): JSON Lines of texts, prompts and completions, choices,
 * conversations or pairs of answers, tokenized and shortened for the bundle. `options` are those of the run. `on_part` is told of
 * the file's bytes; it and `report` may be NULL. On failure nothing is appended. */
ZO_API zo_status zo_dataset_read_with(zo_dataset* dataset, zo_tokenizer* tokenizer, const char* path,
                                      const zo_read_options* options, zo_on_part on_part, void* user,
                                      zo_read_report* report, zo_error* error);
/* The same without packing. */
ZO_API zo_status zo_dataset_read(zo_dataset* dataset, zo_tokenizer* tokenizer, const char* path, int32_t loss,
                                 zo_on_part on_part, void* user, zo_read_report* report, zo_error* error);

/* A text, or a conversation up to the assistant's answer where there are messages. */
typedef struct zo_prompt {
  uint32_t struct_size;
  const char* text;
  size_t text_size;
  const zo_message* messages;
  size_t message_count;
} zo_prompt;

/* What it points to is valid during the call only; a non-zero answer ends the reading with ZO_CANCELLED. */
typedef int32_t (*zo_on_prompt)(void* user, const zo_prompt* prompt);

/* Reads a file of prompts: JSON Lines of {"prompt"} or {"messages"}, each of which is handed on. A line that is something else
 * is a failure that names it, after those before it were handed on. */
ZO_API zo_status zo_prompts_read(const char* path, zo_on_prompt on_prompt, void* user, zo_error* error);

/* ---- helpers ------------------------------------------------------------------------------------------------- */

typedef struct zo_memory {
  uint32_t struct_size;
  uint64_t rss_bytes;
  uint64_t peak_rss_bytes;
  uint64_t anonymous_bytes;
} zo_memory;

/* Of this process, from the kernel; zeros where it does not say. */
ZO_API zo_status zo_memory_usage(zo_memory* memory, zo_error* error);

/* The noise specification, for golden checks in every language (docs/rng.md). */
ZO_API void zo_rng_words(uint64_t seed, uint32_t block, uint32_t tensor_id, uint32_t query, uint32_t step,
                         uint32_t words[4]);
/* Normals `first` ... `first + count - 1` of a tensor's perturbation. */
ZO_API void zo_rng_normals(uint64_t seed, uint32_t tensor_id, uint32_t query, uint32_t step, uint64_t first,
                           uint64_t count, float* normals);
/* Rademacher signs, 1 or -1, of the same elements. */
ZO_API void zo_rng_signs(uint64_t seed, uint32_t tensor_id, uint32_t query, uint32_t step, uint64_t first,
                         uint64_t count, float* signs);
/* The order of `count` examples in an epoch. */
ZO_API void zo_rng_permutation(uint64_t seed, uint32_t epoch, uint32_t count, uint32_t* order);

/* Quantizes finite weights (groups, group_size), as docs/int4.md has it: codes (groups, group_size / 2), and scales (groups)
 * of bfloat16. `group_size` is a multiple of 32. For the compiler: several threads may each quantize groups of their own. */
ZO_API void zo_quantize_int4(const float* weights, uint64_t groups, uint64_t group_size, uint8_t* codes,
                             uint16_t* scales);

#ifdef __cplusplus
}
#endif

#endif /* ZOEXPORT_SESSION_H_ */
