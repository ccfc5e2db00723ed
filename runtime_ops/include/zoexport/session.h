/* zoexport session: the training loop behind a C ABI.
 *
 * A host opens a bundle, attaches a state folder, configures a run, and trains or evaluates. docs/formats.md is the
 * specification; docs/formats.md describes the bundle.
 *
 * Conventions
 * - Every verb returns a zo_status; ZO_OK is 0. On failure it fills `error` (which may be NULL) and changes nothing
 *   beyond what its comment says. No exception and no longjmp crosses this boundary.
 * - Options are one JSON object in UTF-8; NULL stands for {}. graphs/schema/settings.schema.json lists the keys of each
 *   kind of options with types, ranges and defaults. An unknown key, another type or a value out of range is
 *   ZO_INVALID_ARGUMENT, and the message names the key.
 * - Results of type `char**` are JSON in UTF-8, zero-terminated; the caller frees them with zo_free. Numbers that are
 *   not finite or not known are null.
 * - Handles are opaque, owned by the caller, and freed by their `_close` or `_free`, which accept NULL. One thread at a
 *   time uses a handle, except for zo_session_cancel; different handles are independent. A call on a session from
 *   within one of its own callbacks is refused, except for zo_session_costs; closing it there takes effect when the
 *   running call returns.
 * - Strings are UTF-8 and zero-terminated. Pointers that callbacks get are valid during the callback only.
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

#define ZO_ABI_VERSION 3u

typedef int32_t zo_status;
enum {
  ZO_OK = 0,
  ZO_INVALID_ARGUMENT = 1, /* a call or an option that cannot be used */
  ZO_BUNDLE_ERROR = 2,     /* a bundle that is missing, altered, or of another version */
  ZO_STATE_ERROR = 3,      /* a state that is missing, damaged, locked, full, or of another bundle */
  ZO_DATA_ERROR = 4,       /* examples that cannot be used */
  ZO_ENGINE_ERROR = 5,     /* a program that could not be loaded or run */
  ZO_DIVERGED = 6,         /* the loss left its range; the last good state is kept */
  ZO_CANCELLED = 7,        /* a callback or zo_session_cancel asked to stop; progress is saved */
  ZO_INTERNAL_ERROR = 8,   /* a defect or exhausted memory */
  ZO_QUESTION = 9          /* of a job (job.h): the user has to choose between two meanings */
};

/* One message in four parts: the object, the problem, what was expected, and the remedy. Always zero-terminated. */
typedef struct zo_error {
  int32_t code;
  char where[512];
  char found[1024];
  char expected[512];
  char fix[512];
} zo_error;

ZO_API uint32_t zo_abi_version(void);

/* Frees a JSON result; NULL is allowed. */
ZO_API void zo_free(char* json);

/* Checks options of a kind without a call, for example those of a command line. */
ZO_API zo_status zo_options_check(const char* kind, const char* options, zo_error* error);

/* Progress of a long call, at most twenty times a second; a non-zero return value ends the call with ZO_CANCELLED. */
typedef int32_t (*zo_on_part)(void* user, uint64_t done, uint64_t total);

/* One JSON value; a non-zero return value ends the call with ZO_CANCELLED. */
typedef int32_t (*zo_on_json)(void* user, const char* json);

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

/* Runs `program`: reads `inputs` and fills `outputs` (already of the right shape), both in the manifest's order. An
 * output that this call does not need has `data` NULL. Returns 0, or another number after writing a zero-terminated
 * reason into `message`. */
typedef int32_t (*zo_run_program)(void* user, const char* program, const zo_tensor* inputs, size_t input_count,
                                  const zo_tensor* outputs, size_t output_count, char* message, size_t message_size);

/* An engine that the host supplies, for example Core ML. */
typedef struct zo_engine {
  void* user;
  zo_run_program run;
} zo_engine;

/* ---- bundles ------------------------------------------------------------------------------------------------- */

/* Writes the bundle in a file that `zoexport pack` made to `folder`, completely or not at all. Checks the signature
 * before anything is parsed, and hashes while it copies. Options: "unpack". `on_part` gets bytes and may be NULL. */
ZO_API zo_status zo_bundle_unpack(const char* file, const char* folder, const char* options, zo_on_part on_part,
                                  void* user, zo_error* error);

/* Gives the manifest of a bundle folder (docs/formats.md), verified against its own id, and its signature if
 * `trusted_keys` is given. Opens no engine. Options: "manifest". */
ZO_API zo_status zo_bundle_manifest(const char* bundle, const char* options, char** manifest, zo_error* error);

/* ---- sessions ------------------------------------------------------------------------------------------------ */

typedef struct zo_session zo_session;

/* Opens a bundle folder. Options: "open". `engine` is copied; NULL: the engine that the options or the manifest name. */
ZO_API zo_status zo_session_open(const char* bundle, const char* options, const zo_engine* engine, zo_session** session,
                                 zo_error* error);

/* Frees the session and releases its state's lock. Saves nothing that zo_session_save would not find again. */
ZO_API void zo_session_close(zo_session* session);

/* Gives {"bundle_id", "method", "target", "engine", "notice", "rows", "max_length", "copies", "num_queries",
 * "max_labels", "seed", "steps", "device_bytes", "adapters"}. `engine` is the one in use; if it is not the bundle's because
 * that one failed, `notice` says so, and else it is empty. `device_bytes` is the size of a GPU's buffers so far, `adapters`
 * the names of the loaded ones. */
ZO_API zo_status zo_session_info(zo_session* session, char** info, zo_error* error);

/* Gives the state tensors in the manifest's order: a list of {"name", "role", "module", "tensor_id", "shape", "dtype"},
 * whose `dtype` is a name such as "float32". A uint8 tensor that is trained has two integers of 4 bits in an element. */
ZO_API zo_status zo_session_slots(zo_session* session, char** slots, zo_error* error);

/* Gives the cost of programs and kernels so far: {"programs": [{"name", "calls", "seconds", "load_seconds"}], "kernels":
 * [{"name", "dispatches", "seconds", "flops", "bytes"}]}. The engine vulkan alone lists kernels; their seconds are null
 * unless the session was opened with kernel_times. May be called from within callbacks. */
ZO_API zo_status zo_session_costs(zo_session* session, char** costs, zo_error* error);

/* Attaches a state folder, before any step. Options: "attach". By default it resumes the state for training, or creates
 * it, and holds its lock until close; with read_only it needs one that exists, takes no lock and writes nothing. The
 * settings of a run that has begun become the session's, unless it is only read. A damaged log in which complete records
 * follow the damage is refused unless `recover` is given, as no interrupted write leaves one. A state that this call
 * created is removed with the session if its first configure, step or train fails. */
ZO_API zo_status zo_session_attach(zo_session* session, const char* folder, const char* options, zo_error* error);

/* Describes a state folder without its bundle (docs/formats.md), and changes nothing. */
ZO_API zo_status zo_state_describe(const char* folder, char** description, zo_error* error);

/* Lists the Vulkan devices: [{"name", "kind", "version", "problem", "lacks"}]. `kind` is "integrated", "discrete",
 * "virtual", "cpu" or "other"; `problem` is the reason if no bundle can run there, `lacks` what some bundles need. */
ZO_API zo_status zo_vulkan_devices(char** devices, zo_error* error);

/* Gives the settings of the run by key: at first the manifest's, then those of the attached state, then what
 * zo_session_configure changed. */
ZO_API zo_status zo_session_settings(zo_session* session, char** settings, zo_error* error);

/* Changes settings of the run, given by key. Options: "settings" of the phases run and process; `total_steps` is the
 * length of the schedule for zo_session_step. `seed` must be that of an attached state. */
ZO_API zo_status zo_session_configure(zo_session* session, const char* settings, zo_error* error);

/* ---- examples ------------------------------------------------------------------------------------------------ */

typedef struct zo_dataset zo_dataset;

/* `labels[t]` is the token that follows `tokens[t]`, or -100 if nothing is predicted there. */
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

/* SHA-256 of all examples in their order, as the state of a run stores it: 64 hexadecimal digits and a zero. */
ZO_API zo_status zo_dataset_digest(const zo_dataset* dataset, char digest[65], zo_error* error);

/* Appends the examples of a JSON Lines file of tokens (docs/formats.md). On failure nothing is appended. */
ZO_API zo_status zo_dataset_load(zo_dataset* dataset, const char* path, zo_error* error);

/* Writes all examples as such a file, completely or not at all. */
ZO_API zo_status zo_dataset_write(const zo_dataset* dataset, const char* path, zo_error* error);

/* ---- training ------------------------------------------------------------------------------------------------ */

/* Result of one step. Arrays belong to the session. `losses` has 2 * queries values, loss(2i) of +z_i and loss(2i+1)
 * of -z_i; `gradients` has one value per query. Split perturbations (docs/methods.md) give the losses of the second
 * block's directions alone; forward differences give queries + 1 losses, loss(0) without a perturbation and loss(i + 1)
 * of +z_i. A first-order method gives one loss and no gradients. */
typedef struct zo_step {
  uint64_t step;
  double loss; /* mean of `losses` */
  double learning_rate;
  double seconds;
  const double* losses;
  size_t loss_count;
  const float* gradients;
  size_t gradient_count;
} zo_step;

/* Takes one step on the given examples, in this order. The state stores the settings but no examples, as the host
 * chooses them. */
ZO_API zo_status zo_session_step(zo_session* session, const zo_dataset* dataset, const uint64_t* indices, size_t count,
                                 zo_step* step, zo_error* error);

typedef struct zo_progress {
  uint64_t step; /* steps taken in total, this one included */
  uint64_t total;
  double loss;
  double learning_rate;
  double seconds;
  uint64_t rss_bytes;       /* now; 0 if not known */
  uint64_t anonymous_bytes; /* the highest value during the step; 0 if not known */
  const char* notice;       /* what to tell the user once, valid during the call; NULL: nothing */
} zo_progress;

/* Called after every step; a non-zero return value ends the run after saving. */
typedef int32_t (*zo_on_progress)(void* user, const zo_progress* progress);

/* Callbacks of zo_session_train; each may be NULL. */
typedef struct zo_train_callbacks {
  void* user;
  zo_on_progress on_progress;
  zo_on_json on_evaluation; /* after each evaluation on validation examples: an entry of zo_session_evaluations */
  zo_on_part on_part;       /* of the examples of an evaluation, or of those that loss=dpo's reference model scores */
} zo_train_callbacks;

/* Trains until the state has `steps` steps, and saves. Options: "train". The state stores the settings and the digest
 * of the examples: a run that has begun is refused with others unless the state was attached with change_settings.
 *
 * With validation examples (`held_out` is not NULL) it evaluates before the first step, every `eval_every` steps and
 * after the last; without, `eval_every`, `patience` and `keep` have no effect. The state stores the evaluations, the
 * weights of the best one, and the digest of the validation examples. `patience` may end the run before `steps`. */
ZO_API zo_status zo_session_train(zo_session* session, const zo_dataset* dataset, const zo_dataset* held_out,
                                  const char* options, const zo_train_callbacks* callbacks, zo_error* error);

/* Gives the evaluations of the run in the order of steps: [{"step", "loss", "accuracy", "token_accuracy", "margin",
 * "best"}]. `accuracy` is null without choices, `margin` unless the loss compares pairs. `best` is true for the lowest
 * loss of the run, step 0 excepted. */
ZO_API zo_status zo_session_evaluations(zo_session* session, char** evaluations, zo_error* error);

/* Ends a running zo_session_train, from any thread or from a signal handler: it finishes its step, saves, and returns
 * ZO_CANCELLED. Also ends zo_session_evaluate, _score and _generate. Does nothing if none runs. The session must not
 * be closed meanwhile. */
ZO_API void zo_session_cancel(zo_session* session);

/* Evaluates the weights, the pending update applied, with the configured loss: {"loss", "accuracy", "token_accuracy",
 * "margin", "examples"}. Changes no state. `on_part` gets examples and may be NULL. */
ZO_API zo_status zo_session_evaluate(zo_session* session, const zo_dataset* dataset, zo_on_part on_part, void* user,
                                     char** evaluation, zo_error* error);
/* Scores every candidate with the weights, the pending update applied: [[{"logprob", "labels", "argmax"}]], a list of
 * candidates for each example. `logprob` is the sum of the log-probabilities of the labels, null unless it is finite;
 * `argmax` is the number of labels that are the likeliest token. Changes no state. `on_part` gets examples and may be
 * NULL. */
ZO_API zo_status zo_session_score(zo_session* session, const zo_dataset* dataset, zo_on_part on_part, void* user,
                                  char** scores, zo_error* error);

/* ---- generation ---------------------------------------------------------------------------------------------- */

/* Called with each generated token; a non-zero return value ends the generation. */
typedef int32_t (*zo_on_token)(void* user, int64_t token);

/* Called with chunks of the generated text, in UTF-8 and never a part of a character; a non-zero return value ends the
 * generation. */
typedef int32_t (*zo_on_text)(void* user, const char* text, size_t size);

/* Generates with the weights, the pending update applied (docs/export.md). Options: "generate"; the prompt is one of
 * `prompt`, `tokens` and `messages`. Gives {"text", "stop", "prompt_tokens", "tokens", "kept_tokens", "prefill_seconds",
 * "decode_seconds", "anonymous_bytes"}: `text` is null unless the prompt is text, or stop strings or `on_text` are
 * given; `stop` is "eos", "length", "caller" or "string"; `tokens` counts; `kept_tokens` of the prompt were read by an
 * earlier call (option `keep`). Both callbacks may be NULL. Changes no state. ZO_BUNDLE_ERROR if the bundle has no
 * programs that generate. Caches and the tokenizer are freed by the next step or zo_session_forget. */
ZO_API zo_status zo_session_generate(zo_session* session, const char* options, zo_on_token on_token, zo_on_text on_text,
                                     void* user, char** generation, zo_error* error);

/* Frees what zo_session_generate keeps between calls. */
ZO_API zo_status zo_session_forget(zo_session* session, zo_error* error);

/* ---- adapters ------------------------------------------------------------------------------------------------ */

/* State tensors under a name, for generation alone; no state contains them. A tensor that was not given
 * has the bundle's values. */

/* Loads an adapter in PEFT's form, the folder that `zoexport adapter export` writes; replaces one of the same name. One
 * that does not fit is refused: ZO_STATE_ERROR, and nothing changes. */
ZO_API zo_status zo_session_load_adapter(zo_session* session, const char* name, const char* folder, zo_error* error);

/* Gives one tensor of the adapter its values (zo_session_write_slot); creates the adapter if needed. */
ZO_API zo_status zo_session_write_adapter(zo_session* session, const char* name, const char* slot, const void* values,
                                          size_t bytes, zo_error* error);

/* Frees an adapter. */
ZO_API zo_status zo_session_drop_adapter(zo_session* session, const char* name, zo_error* error);

/* Writes what the session trained, the pending update applied, to `path`, completely or not at all (docs/export.md).
 * Options: "export". Changes no state. ZO_INVALID_ARGUMENT if the bundle trains no adapter of floats, the path exists or
 * cannot be written, or a value is not finite or beyond the type; ZO_BUNDLE_ERROR if llama.cpp has no names for its
 * layers. */
ZO_API zo_status zo_session_export_adapter(zo_session* session, const char* options, const char* path, zo_error* error);

/* Also writes an adapter that no session has. Options: "adapter", which lists the layers; `matrices` are 2 per layer:
 * A (inputs, rank) and B (rank, outputs), row-major, with y += x A B scale. */
ZO_API zo_status zo_adapter_write(const char* adapter, const float* const* matrices, size_t count, const char* path,
                                  zo_error* error);

/* Reads an adapter in PEFT's form with the layers and sizes of `adapter` (as above) and the scales of its `description`,
 * the text of an adapter_config.json, and nothing else. One that does not fit, is damaged or is not finite:
 * ZO_STATE_ERROR, and no matrix is filled. */
ZO_API zo_status zo_adapter_read(const char* folder, const char* adapter, float* const* matrices, size_t count,
                                 zo_error* error);

/* ---- state --------------------------------------------------------------------------------------------------- */

enum {
  ZO_SLOT_CURRENT = 0,  /* as the last step evaluated it */
  ZO_SLOT_FINISHED = 1, /* with the pending update applied: what export and evaluation use */
  ZO_SLOT_GRADIENT = 2  /* the last step's gradient by a trainable tensor, before clipping: first-order methods */
};

/* Values pass as float32 for tensors of float32 and float16 (converted exactly when read; rounded to nearest, ties to
 * even, when written), and in the tensor's own dtype for integers. `bytes` must be their size. */

/* Copies a tensor's values. */
ZO_API zo_status zo_session_read_slot(zo_session* session, const char* name, int32_t which, void* values, size_t bytes,
                                      zo_error* error);

/* Replaces a tensor's initial values (an imported adapter), before the first step. No int8 value may be -128. */
ZO_API zo_status zo_session_write_slot(zo_session* session, const char* name, const void* values, size_t bytes,
                                       zo_error* error);

/* Like zo_session_read_slot, but recomputed from the initial values and the first `updates` records alone.
 * ZO_INVALID_ARGUMENT for first-order methods, whose records do not contain their updates. */
ZO_API zo_status zo_session_replay_slot(zo_session* session, const char* name, uint64_t updates, void* values,
                                        size_t bytes, zo_error* error);

typedef struct zo_record {
  uint64_t step;
  float learning_rate;
  float eps;
  float loss;
} zo_record;

/* Record `index` of the trajectory log; `gradients` (may be NULL) receives one value per query. */
ZO_API zo_status zo_session_record(zo_session* session, uint64_t index, zo_record* record, float* gradients,
                                   zo_error* error);

/* Continues as if the session had taken these steps itself, and runs no program: appends the records, applies their
 * updates, and writes the snapshots that zo_session_train would have written, including the last. Afterwards tensors,
 * log and state folder equal those of the session that took the steps, bit for bit, if both began with the same values
 * and seed. The first record has the step that the session is to take next; `gradients` has one value per query for
 * each record. Records that training cannot have made (values that are not finite, another step, a diverged loss) are
 * all refused before anything changes. ZO_INVALID_ARGUMENT for first-order methods. */
ZO_API zo_status zo_session_follow(zo_session* session, const zo_record* records, const float* gradients, size_t count,
                                   zo_error* error);

/* Writes a snapshot and syncs the log. ZO_STATE_ERROR without a state folder. */
ZO_API zo_status zo_session_save(zo_session* session, zo_error* error);

/* ---- text ---------------------------------------------------------------------------------------------------- */

/* A bundle's tokenizer (docs/formats.md), which needs no session. */
typedef struct zo_tokenizer zo_tokenizer;

/* Opens the tokenizer of a bundle folder. Options: "tokenizer". */
ZO_API zo_status zo_tokenizer_open(const char* bundle, const char* options, zo_tokenizer** tokenizer, zo_error* error);
/* The tokenizer of a model that is not compiled yet, from the content of its tokenizer.json. Options: "uncompiled". */
ZO_API zo_status zo_tokenizer_parse(const char* content, const char* options, zo_tokenizer** tokenizer,
                                    zo_error* error);
ZO_API void zo_tokenizer_close(zo_tokenizer* tokenizer);

/* The next two copy their results to the caller's array: `count` or `size` is its length, and becomes the needed length.
 * If that is more, nothing was written; the array may be NULL if its length is 0. Text is not zero-terminated and may
 * contain zeros. */

/* Tokens of a text in UTF-8. `special` non-zero: with those that the tokenizer adds around it. Special tokens that the
 * text names are found in any case. `size` + 64 tokens are always enough. */
ZO_API zo_status zo_tokenizer_encode(zo_tokenizer* tokenizer, const char* text, size_t size, int32_t special,
                                     int64_t* tokens, size_t* count, zo_error* error);
/* Text of tokens. `special` zero: without special ones. */
ZO_API zo_status zo_tokenizer_decode(zo_tokenizer* tokenizer, const int64_t* tokens, size_t count, int32_t special,
                                     char* text, size_t* size, zo_error* error);

/* Renders a conversation with the model's chat template: {"text"}, to be tokenized without `special`. Options: "chat". */
ZO_API zo_status zo_tokenizer_chat(zo_tokenizer* tokenizer, const char* options, char** chat, zo_error* error);

/* Appends the examples of a data file (docs/formats.md, "Training data"): JSON Lines of texts, prompts and completions, choices,
 * conversations or pairs of responses, tokenized and shortened for the bundle. Options: "read", which are settings of
 * the run. Gives {"examples", "shortened", "longest", "note"}: examples of the file, how many exceed max_length, tokens of
 * the longest before it was shortened, and sentences to show before the first step. `on_part` gets bytes and may be
 * NULL. On failure nothing is appended. */
ZO_API zo_status zo_dataset_read(zo_dataset* dataset, zo_tokenizer* tokenizer, const char* path, const char* options,
                                 zo_on_part on_part, void* user, char** report, zo_error* error);

/* Reads a data file as zo_dataset_read does and passes each line on: {"line", "record", "candidates", "target", "length",
 * "shortened", "last_turn_only", "merged", "unused"}, or {"line", "problem"} for one that cannot be used. `record` is {"text"}, {"prompt",
 * "completions", "pair"} or {"messages", "rejected"}; `candidates` have "tokens" and "labels"; `length` counts tokens before
 * the example was shortened; "last_turn_only": earlier answers of the conversation are not learned, as its template writes
 * them otherwise; "merged": a token reaches from the prompt into the completion; `unused` are the line's keys that the example does not have. With `pack`, a text that may be divided is not shortened. */
ZO_API zo_status zo_examples_read(zo_tokenizer* tokenizer, const char* path, const char* options, zo_on_json on_example,
                                  void* user, zo_error* error);

/* Reads a file of prompts: JSON Lines of {"prompt"}, {"messages"} and what data files have for them, and passes each on with "where", its line, and
 * "answers": those of the line, or its completion or last message. Any other line is a failure that names it, after the
 * lines before it were passed on. */
ZO_API zo_status zo_prompts_read(const char* path, zo_on_json on_prompt, void* user, zo_error* error);

/* ---- helpers ------------------------------------------------------------------------------------------------- */

/* Memory of this process, from the kernel: {"rss_bytes", "peak_rss_bytes", "anonymous_bytes"}; 0 if not known. */
ZO_API zo_status zo_memory_usage(char** memory, zo_error* error);

/* The noise specification, for golden checks in every language (docs/noise.md). */
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

/* Quantizes finite weights (groups, group_size) as in docs/formats.md: qweights (groups, group_size / 2), and bfloat16
 * scales (groups). `group_size` is a multiple of 32. Threads may each quantize groups of their own. */
ZO_API void zo_quantize_int4(const float* weights, uint64_t groups, uint64_t group_size, uint8_t* codes,
                             uint16_t* scales);

#ifdef __cplusplus
}
#endif

#endif /* ZOEXPORT_SESSION_H_ */
