/* Train a bundle through the C ABI, complete a prompt, and write the adapter for PEFT.
 *
 *   cc train.c -I.../runtime_ops/include -L.../_native -lzoexport -o train
 *   ./train model.bundle data.jsonl run 20 "Once upon a time" adapter
 */
#include <stdio.h>
#include <stdlib.h>
#include <zoexport/session.h>

static zo_error error;

static void check(zo_status status) {
  if (status != ZO_OK) {
    fprintf(stderr, "%s: found %s; expected %s. %s\n", error.where, error.found, error.expected, error.fix);
    exit(1);
  }
}

static int32_t print_step(void* user, const zo_progress* progress) {
  (void)user;
  printf("step %llu of %llu: loss %.4f\n", (unsigned long long)progress->step, (unsigned long long)progress->total,
         progress->loss);
  return 0; /* another value stops the run and saves it */
}

static int32_t print_text(void* user, const char* text, size_t size) {
  (void)user;
  return fwrite(text, 1, size, stdout) == size ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc != 7) {
    fprintf(stderr, "usage: %s BUNDLE DATA STATE STEPS PROMPT ADAPTER\n", argv[0]);
    return 2;
  }
  zo_tokenizer* tokenizer = NULL;
  zo_dataset* dataset = zo_dataset_new();
  zo_session* session = NULL;
  char* report = NULL;
  char options[1024];

  check(zo_tokenizer_open(argv[1], "{}", &tokenizer, &error));
  check(zo_dataset_read(dataset, tokenizer, argv[2], "{}", NULL, NULL, &report, &error));
  zo_free(report); /* {"examples", "shortened", ...} */
  zo_tokenizer_close(tokenizer);

  check(zo_session_open(argv[1], "{\"threads\": 2}", NULL, &session, &error));
  check(zo_session_attach(session, argv[3], "{}", &error)); /* creates the state, or resumes it */
  snprintf(options, sizeof options, "{\"steps\": %s}", argv[4]);
  const zo_train_callbacks callbacks = {NULL, print_step, NULL, NULL};
  check(zo_session_train(session, dataset, NULL, options, &callbacks, &error));
  zo_dataset_free(dataset);

  /* A prompt with quotes or backslashes would need escapes in JSON. */
  snprintf(options, sizeof options, "{\"prompt\": \"%s\", \"max_new_tokens\": 16}", argv[5]);
  check(zo_session_generate(session, options, NULL, print_text, NULL, &report, &error));
  printf("\n");
  zo_free(report);

  check(zo_session_export_adapter(session, "{\"format\": \"peft\"}", argv[6], &error));
  zo_session_close(session);
  return 0;
}
