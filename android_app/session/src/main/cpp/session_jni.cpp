// Native methods over session.h, in its order. Options and results are JSON; handles are addresses.
#include "jni_support.h"

using namespace zoexport::jni;

namespace {

const Listener& host(void* user) { return *static_cast<const Listener*>(user); }

int32_t on_part(void* user, uint64_t done, uint64_t total) { return host(user).ends("onPart", "(JJ)Z", done, total); }

int32_t on_progress(void* user, const zo_progress* p) {
  return host(user).ends("onStep", "(JJDDDJJ)Z", p->step, p->total, p->loss, p->learning_rate, p->seconds, p->rss_bytes,
                         p->anonymous_bytes);
}

int32_t on_json(void* user, const char* json) {
  return host(user).ends("onJson", "(Ljava/lang/String;)Z", std::string_view(json));
}

int32_t on_token(void* user, int64_t token) { return host(user).ends("onToken", "(J)Z", token); }

int32_t on_text(void* user, const char* text, size_t size) {
  return host(user).ends("onText", "(Ljava/lang/String;)Z", std::string_view(text, size));
}

// Reads `size` bytes of a state tensor with a verb.
template <typename Verb, typename Which>
jbyteArray read(JNIEnv* env, Verb verb, jlong session, jstring name, Which which, jlong size) {
  return guarded(env, [&]() -> jbyteArray {
    std::vector<uint8_t> bytes(static_cast<size_t>(size));
    call(env, verb, session, name, which, static_cast<void*>(bytes.data()), bytes.size());
    return to_bytes(env, bytes.data(), bytes.size());
  });
}

}  // namespace

ZO_NATIVE(jint, abiVersion)(JNIEnv*, jobject) { return static_cast<jint>(zo_abi_version()); }

ZO_NATIVE(void, unpack)(JNIEnv* env, jobject, jstring file, jstring folder, jstring options, jobject listener) {
  run(env, zo_bundle_unpack, file, folder, options, on_part, listener);
}

ZO_NATIVE(jstring, manifest)(JNIEnv* env, jobject, jstring bundle, jstring options) {
  return json(env, zo_bundle_manifest, bundle, options);
}

ZO_NATIVE(jlong, open)(JNIEnv* env, jobject, jstring bundle, jstring options) {
  return opened<zo_session>(env, zo_session_open, bundle, options, nullptr);
}

ZO_FREE(close, zo_session_close)
ZO_JSON(info, zo_session_info)
ZO_JSON(slots, zo_session_slots)
ZO_RUN_TEXTS(attach, zo_session_attach)
ZO_JSON(settings, zo_session_settings)
ZO_RUN_TEXT(configure, zo_session_configure)

ZO_NATIVE(jlong, newDataset)(JNIEnv*, jobject) { return reinterpret_cast<jlong>(zo_dataset_new()); }
ZO_FREE(freeDataset, zo_dataset_free)
ZO_RUN_TEXT(load, zo_dataset_load)

ZO_NATIVE(jlong, datasetSize)(JNIEnv*, jobject, jlong dataset) {
  return static_cast<jlong>(zo_dataset_size(Long{dataset}));
}

// Candidates follow each other in `tokens` and `labels`.
ZO_NATIVE(void, addExample)
(JNIEnv* env, jobject, jlong dataset, jlongArray lengths, jlongArray tokens, jlongArray labels, jlong target) {
  guarded(env, [&] {
    const std::vector<int64_t> all = to_vector(env, tokens), marks = to_vector(env, labels);
    std::vector<zo_candidate> candidates;
    size_t first = 0;
    for (const int64_t length : to_vector(env, lengths)) {
      candidates.push_back({all.data() + first, marks.data() + first, static_cast<size_t>(length)});
      first += static_cast<size_t>(length);
    }
    call(env, zo_dataset_add, dataset, candidates.data(), candidates.size(), target);
  });
}

ZO_NATIVE(jstring, digest)(JNIEnv* env, jobject, jlong dataset) {
  return guarded(env, [&]() -> jstring {
    char digest[65];
    call(env, zo_dataset_digest, dataset, static_cast<char*>(digest));
    return to_text(env, digest);
  });
}

// Returns step, loss, learning_rate, seconds, and the number of losses; then losses and gradients.
ZO_NATIVE(jdoubleArray, step)(JNIEnv* env, jobject, jlong session, jlong dataset, jlongArray indices) {
  return guarded(env, [&]() -> jdoubleArray {
    const std::vector<int64_t> given = to_vector(env, indices);
    // The library refuses an index that is out of range, as a negative one is here.
    const auto* chosen = reinterpret_cast<const uint64_t*>(given.data());
    zo_step step;
    call(env, zo_session_step, session, dataset, chosen, given.size(), &step);
    std::vector<double> values = {static_cast<double>(step.step), step.loss, step.learning_rate, step.seconds,
                                  static_cast<double>(step.loss_count)};
    values.insert(values.end(), step.losses, step.losses + step.loss_count);
    values.insert(values.end(), step.gradients, step.gradients + step.gradient_count);
    return to_doubles(env, values);
  });
}

ZO_NATIVE(void, train)
(JNIEnv* env, jobject, jlong session, jlong dataset, jlong held_out, jstring options, jobject listener) {
  Listener user{env, listener};
  const zo_train_callbacks callbacks = {&user, on_progress, on_json, on_part};
  run(env, zo_session_train, session, dataset, held_out, options, &callbacks);
}

ZO_JSON(evaluations, zo_session_evaluations)
ZO_FREE(cancel, zo_session_cancel)

ZO_NATIVE(jstring, evaluate)(JNIEnv* env, jobject, jlong session, jlong dataset, jobject listener) {
  return json(env, zo_session_evaluate, session, dataset, on_part, listener);
}

ZO_NATIVE(jstring, generate)(JNIEnv* env, jobject, jlong session, jstring options, jobject listener) {
  return json(env, zo_session_generate, session, options, on_token, on_text, listener);
}

ZO_RUN(forget, zo_session_forget)
ZO_RUN_TEXTS(loadAdapter, zo_session_load_adapter)
ZO_RUN_TEXT(dropAdapter, zo_session_drop_adapter)
ZO_RUN_TEXTS(exportAdapter, zo_session_export_adapter)

ZO_NATIVE(jbyteArray, readSlot)(JNIEnv* env, jobject, jlong session, jstring name, jint which, jlong size) {
  return read(env, zo_session_read_slot, session, name, which, size);
}

ZO_NATIVE(jbyteArray, replaySlot)(JNIEnv* env, jobject, jlong session, jstring name, jlong updates, jlong size) {
  return read(env, zo_session_replay_slot, session, name, updates, size);
}

ZO_NATIVE(void, writeSlot)(JNIEnv* env, jobject, jlong session, jstring name, jbyteArray values) {
  guarded(env, [&] {
    const std::vector<uint8_t> bytes = to_vector(env, values);
    call(env, zo_session_write_slot, session, name, static_cast<const void*>(bytes.data()), bytes.size());
  });
}

// Returns step, learning_rate, eps, loss and a gradient for each query.
ZO_NATIVE(jdoubleArray, record)(JNIEnv* env, jobject, jlong session, jlong index, jint queries) {
  return guarded(env, [&]() -> jdoubleArray {
    std::vector<float> gradients(static_cast<size_t>(queries));
    zo_record record;
    call(env, zo_session_record, session, index, &record, gradients.data());
    std::vector<double> values = {static_cast<double>(record.step), record.learning_rate, record.eps, record.loss};
    values.insert(values.end(), gradients.begin(), gradients.end());
    return to_doubles(env, values);
  });
}

ZO_RUN(save, zo_session_save)

ZO_NATIVE(jlong, openTokenizer)(JNIEnv* env, jobject, jstring bundle, jstring options) {
  return opened<zo_tokenizer>(env, zo_tokenizer_open, bundle, options);
}

ZO_FREE(closeTokenizer, zo_tokenizer_close)

ZO_NATIVE(jstring, read)
(JNIEnv* env, jobject, jlong dataset, jlong tokenizer, jstring path, jstring options, jobject listener) {
  return json(env, zo_dataset_read, dataset, tokenizer, path, options, on_part, listener);
}

ZO_NATIVE(jdoubleArray, words)(JNIEnv* env, jobject, jlong seed, jint block, jint tensor, jint query, jint step) {
  return guarded(env, [&]() -> jdoubleArray {
    std::vector<uint32_t> words(4);
    zo_rng_words(Long{seed}, block, tensor, query, step, words.data());
    return to_doubles(env, words);
  });
}

ZO_NATIVE(jdoubleArray, noise)
(JNIEnv* env, jobject, jboolean signs, jlong seed, jint tensor, jint query, jint step, jlong first, jint count) {
  return guarded(env, [&]() -> jdoubleArray {
    std::vector<float> made(static_cast<size_t>(count));
    const auto make = signs == JNI_TRUE ? zo_rng_signs : zo_rng_normals;
    make(Long{seed}, tensor, query, step, Long{first}, made.size(), made.data());
    return to_doubles(env, made);
  });
}

ZO_NATIVE(jdoubleArray, permutation)(JNIEnv* env, jobject, jlong seed, jint epoch, jint count) {
  return guarded(env, [&]() -> jdoubleArray {
    std::vector<uint32_t> order(static_cast<size_t>(count));
    zo_rng_permutation(Long{seed}, epoch, count, order.data());
    return to_doubles(env, order);
  });
}
