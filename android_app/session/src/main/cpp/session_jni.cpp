// The native methods of zoexport.session over the C ABI, in the order of session.h. Kotlin holds the locks and checks
// signs; handles are addresses.
#include <memory>

#include "jni_support.h"

using namespace zoexport::jni;

namespace {

zo_dataset* dataset_of(jlong address) { return reinterpret_cast<zo_dataset*>(address); }

int32_t on_progress(void* user, const zo_progress* p) {
  return static_cast<const Listener*>(user)->ends([&](JNIEnv* env, jobject object, jmethodID method) {
    jobject progress = make(env, "StepProgress", "(JJDDDJJ)V", bits(p->step), bits(p->total), p->loss, p->lr,
                            p->seconds, bits(p->rss_bytes), bits(p->anonymous_bytes));
    return env->CallBooleanMethod(object, method, progress);
  });
}

jobject to_object(JNIEnv* env, const zo_slot_info& slot) {
  return make(env, "SlotInfo", "(Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;I[JJI)V",
              to_string(env, slot.name), to_string(env, slot.role), to_string(env, slot.module), bits(slot.tensor_id),
              to_array(env, slot.shape, static_cast<size_t>(slot.rank)), bits(slot.elements),
              static_cast<jint>(slot.dtype));
}

}  // namespace

ZO_NATIVE(jint, Library, nativeAbiVersion)(JNIEnv*, jclass) { return bits(zo_abi_version()); }

// ---- sessions ----------------------------------------------------------------------------------------------------

ZO_NATIVE(jlong, TrainingSession, nativeOpen)
(JNIEnv* env, jclass, jstring bundle, jint threads, jboolean verify, jstring cache, jstring trusted_keys,
 jstring engine_name) {
  return guarded(env, [&]() -> jlong {
    const std::string folder = to_utf8(env, bundle);
    OpenOptions options(env, cache, trusted_keys, engine_name);
    options->threads = static_cast<uint32_t>(threads);
    options->skip_hashes = verify == JNI_TRUE ? 0 : 1;
    zo_session* session = nullptr;
    call(env, zo_session_open, folder.c_str(), options.get(), &session);
    return reinterpret_cast<jlong>(session);
  });
}

ZO_NATIVE(void, TrainingSession, nativeClose)(JNIEnv*, jclass, jlong session) { zo_session_close(session_of(session)); }

ZO_NATIVE(jobject, TrainingSession, nativeInfo)(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&]() -> jobject {
    auto info = sized<zo_info>();
    call(env, zo_session_info, session_of(session), &info);
    return make(env, "SessionInfo",
                "(Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;IIIIIJJLjava/lang/String;"
                "Ljava/lang/String;)V",
                to_string(env, info.bundle_id), to_string(env, info.method), to_string(env, info.target),
                to_string(env, info.engine), bits(info.rows), bits(info.seq_len), bits(info.copies), bits(info.queries),
                bits(info.max_labels), bits(info.seed), bits(info.steps), to_string(env, info.packed_weights),
                to_string(env, info.packed_problem));
  });
}

ZO_NATIVE(jint, TrainingSession, nativeSlotCount)(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&]() -> jint {
    auto info = sized<zo_info>();
    call(env, zo_session_info, session_of(session), &info);
    return bits(info.slots);
  });
}

ZO_NATIVE(jobject, TrainingSession, nativeSlot)(JNIEnv* env, jclass, jlong session, jint index) {
  return guarded(env, [&]() -> jobject {
    auto slot = sized<zo_slot_info>();
    call(env, zo_session_slot, session_of(session), static_cast<uint32_t>(index), &slot);
    return to_object(env, slot);
  });
}

ZO_NATIVE(jobject, TrainingSession, nativeFindSlot)(JNIEnv* env, jclass, jlong session, jstring name) {
  return guarded(env, [&]() -> jobject {
    const std::string wanted = to_utf8(env, name);
    auto slot = sized<zo_slot_info>();
    call(env, zo_session_find_slot, session_of(session), wanted.c_str(), &slot);
    return to_object(env, slot);
  });
}

ZO_NATIVE(void, TrainingSession, nativeAttach)
(JNIEnv* env, jclass, jlong session, jstring state, jboolean read_only, jboolean has_seed, jlong seed, jboolean recover,
 jboolean change_settings) {
  guarded(env, [&] {
    const std::string folder = to_utf8(env, state);
    const auto given = static_cast<uint64_t>(seed);
    auto options = sized<zo_attach_options>();
    options.mode = read_only == JNI_TRUE ? ZO_STATE_READ : ZO_STATE_TRAIN;
    options.seed = has_seed == JNI_TRUE ? &given : nullptr;
    options.recover = recover == JNI_TRUE ? 1 : 0;
    options.change_settings = change_settings == JNI_TRUE ? 1 : 0;
    call(env, zo_session_attach_with, session_of(session), folder.c_str(), &options);
  });
}

ZO_NATIVE(jobject, TrainingSession, nativeRun)(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&]() -> jobject {
    auto run = sized<zo_run>();
    call(env, zo_session_run, session_of(session), &run);
    return make(env, "Run", "(IIIIDDJJDDDIIIDDIZII)V", static_cast<jint>(run.schedule), static_cast<jint>(run.loss),
                bits(run.batch), bits(run.accumulate), run.lr, run.eps, bits(run.seed), bits(run.total_steps),
                run.momentum, run.weight_decay, run.clip, bits(run.checkpoint_every), static_cast<jint>(run.difference),
                bits(run.warmup), run.dpo_beta, run.orpo_beta, static_cast<jint>(run.choices),
                static_cast<jboolean>(run.pack != 0 ? JNI_TRUE : JNI_FALSE), bits(run.keep_mb),
                bits(run.cache_prefix_mb));
  });
}

ZO_NATIVE(void, TrainingSession, nativeConfigure)
(JNIEnv* env, jclass, jlong session, jint schedule, jint loss, jint batch, jint accumulate, jdouble lr, jdouble eps,
 jlong seed, jlong total_steps, jdouble momentum, jdouble weight_decay, jdouble clip, jint checkpoint_every,
 jint difference, jint warmup, jdouble dpo_beta, jdouble orpo_beta, jint choices, jboolean pack, jint keep_mb,
 jint cache_prefix_mb) {
  guarded(env, [&] {
    auto run = sized<zo_run>();
    run.schedule = schedule;
    run.loss = loss;
    run.batch = static_cast<uint32_t>(batch);
    run.accumulate = static_cast<uint32_t>(accumulate);
    run.lr = lr;
    run.eps = eps;
    run.seed = static_cast<uint64_t>(seed);
    run.total_steps = static_cast<uint64_t>(total_steps);
    run.momentum = momentum;
    run.weight_decay = weight_decay;
    run.clip = clip;
    run.checkpoint_every = static_cast<uint32_t>(checkpoint_every);
    run.difference = difference;
    run.warmup = static_cast<uint32_t>(warmup);
    run.dpo_beta = dpo_beta;
    run.orpo_beta = orpo_beta;
    run.choices = choices;
    run.pack = pack == JNI_TRUE ? 1 : 0;
    run.keep_mb = static_cast<uint32_t>(keep_mb);
    run.cache_prefix_mb = static_cast<uint32_t>(cache_prefix_mb);
    call(env, zo_session_configure, session_of(session), &run);
  });
}

// ---- examples ----------------------------------------------------------------------------------------------------

ZO_NATIVE(jlong, Dataset, nativeNew)(JNIEnv* env, jclass) {
  return guarded(env, [&]() -> jlong {
    zo_dataset* dataset = zo_dataset_new();
    if (dataset == nullptr) {
      throw std::bad_alloc();
    }
    return reinterpret_cast<jlong>(dataset);
  });
}

ZO_NATIVE(void, Dataset, nativeFree)(JNIEnv*, jclass, jlong dataset) { zo_dataset_free(dataset_of(dataset)); }

ZO_NATIVE(jlong, Dataset, nativeSize)(JNIEnv*, jclass, jlong dataset) {
  return bits(zo_dataset_size(dataset_of(dataset)));
}

ZO_NATIVE(void, Dataset, nativeAdd)
(JNIEnv* env, jclass, jlong dataset, jobjectArray tokens, jobjectArray labels, jlong target) {
  guarded(env, [&] {
    const jsize count = env->GetArrayLength(tokens);
    std::vector<std::vector<int64_t>> numbers;  // tokens and labels in turn
    for (jsize i = 0; i < count; ++i) {
      for (jobjectArray part : {tokens, labels}) {
        auto array = static_cast<jlongArray>(checked(env, env->GetObjectArrayElement(part, i)));
        numbers.push_back(to_vector(env, array));
        env->DeleteLocalRef(array);
      }
    }
    std::vector<zo_candidate> candidates;
    for (size_t i = 0; i < numbers.size(); i += 2) {
      candidates.push_back({numbers[i].data(), numbers[i + 1].data(), numbers[i].size()});
    }
    call(env, zo_dataset_add, dataset_of(dataset), candidates.data(), candidates.size(), static_cast<size_t>(target));
  });
}

ZO_NATIVE(jlong, Dataset, nativeRead)
(JNIEnv* env, jclass, jlong dataset, jstring bundle, jstring data, jint loss, jboolean pack, jstring trusted_keys) {
  return guarded(env, [&]() -> jlong {
    const std::string folder = to_utf8(env, bundle), file = to_utf8(env, data);
    const OpenOptions options(env, nullptr, trusted_keys);
    zo_tokenizer* opened = nullptr;
    call(env, zo_tokenizer_open, folder.c_str(), options.get(), &opened);
    const std::unique_ptr<zo_tokenizer, void (*)(zo_tokenizer*)> tokenizer(opened, zo_tokenizer_close);
    auto report = sized<zo_read_report>();
    auto read = sized<zo_read_options>();
    read.loss = loss;
    read.pack = pack == JNI_TRUE ? 1 : 0;
    call(env, zo_dataset_read_with, dataset_of(dataset), opened, file.c_str(), &read, nullptr, nullptr, &report);
    return bits(report.shortened);
  });
}

ZO_NATIVE(jstring, Dataset, nativeDigest)(JNIEnv* env, jclass, jlong dataset) {
  return guarded(env, [&]() -> jstring {
    char digest[65];
    call(env, zo_dataset_digest, dataset_of(dataset), digest);
    return to_string(env, digest);
  });
}

ZO_NATIVE(void, Dataset, nativeLoad)(JNIEnv* env, jclass, jlong dataset, jstring path) {
  guarded(env, [&] {
    const std::string file = to_utf8(env, path);
    call(env, zo_dataset_load, dataset_of(dataset), file.c_str());
  });
}

// ---- training ----------------------------------------------------------------------------------------------------

ZO_NATIVE(jobject, TrainingSession, nativeStep)
(JNIEnv* env, jclass, jlong session, jlong dataset, jlongArray indices) {
  return guarded(env, [&]() -> jobject {
    const std::vector<int64_t> given = to_vector(env, indices);
    // The library refuses an index that is out of range, which a negative one becomes.
    const auto* chosen = reinterpret_cast<const uint64_t*>(given.data());
    auto step = sized<zo_step>();
    call(env, zo_session_step, session_of(session), dataset_of(dataset), chosen, given.size(), &step);
    return make(env, "StepResult", "(JDDD[D[F)V", bits(step.step), step.loss, step.lr, step.seconds,
                to_array(env, step.losses, step.loss_count), to_array(env, step.gradients, step.gradient_count));
  });
}

ZO_NATIVE(void, TrainingSession, nativeTrain)
(JNIEnv* env, jclass, jlong session, jlong dataset, jlong total_steps, jobject progress) {
  guarded(env, [&] {
    Listener listener(env, progress, "OnProgress", "onProgress", "(Lzoexport/session/StepProgress;)Z");
    call(env, zo_session_train, session_of(session), dataset_of(dataset), static_cast<uint64_t>(total_steps),
         &on_progress, static_cast<void*>(&listener));
  });
}

ZO_NATIVE(void, TrainingSession, nativeCancel)(JNIEnv*, jclass, jlong session) {
  zo_session_cancel(session_of(session));
}

ZO_NATIVE(jobject, TrainingSession, nativeEvaluate)(JNIEnv* env, jclass, jlong session, jlong dataset) {
  return guarded(env, [&]() -> jobject {
    auto found = sized<zo_evaluation>();
    call(env, zo_session_evaluate, session_of(session), dataset_of(dataset), nullptr, nullptr, &found);
    return make(env, "Evaluation", "(DDDJD)V", found.loss, found.accuracy, found.token_accuracy, bits(found.examples),
                found.margin);
  });
}

// ---- state -------------------------------------------------------------------------------------------------------

ZO_NATIVE(jfloatArray, TrainingSession, nativeReadSlot)
(JNIEnv* env, jclass, jlong session, jstring name, jint which, jlong elements) {
  return guarded(env, [&]() -> jfloatArray {
    const std::string slot = to_utf8(env, name);
    std::vector<float> values(static_cast<size_t>(elements));
    call(env, zo_session_read_slot, session_of(session), slot.c_str(), static_cast<int32_t>(which), values.data(),
         values.size());
    return to_array(env, values.data(), values.size());
  });
}

ZO_NATIVE(jbyteArray, TrainingSession, nativeReadSlotBytes)
(JNIEnv* env, jclass, jlong session, jstring name, jint which, jlong size) {
  return guarded(env, [&]() -> jbyteArray {
    const std::string slot = to_utf8(env, name);
    std::vector<uint8_t> bytes(static_cast<size_t>(size));
    call(env, zo_session_read_slot_bytes, session_of(session), slot.c_str(), static_cast<int32_t>(which),
         static_cast<void*>(bytes.data()), bytes.size());
    return to_array(env, bytes.data(), bytes.size());
  });
}

ZO_NATIVE(jfloatArray, TrainingSession, nativeReplaySlot)
(JNIEnv* env, jclass, jlong session, jstring name, jlong updates, jlong elements) {
  return guarded(env, [&]() -> jfloatArray {
    const std::string slot = to_utf8(env, name);
    std::vector<float> values(static_cast<size_t>(elements));
    call(env, zo_session_replay_slot, session_of(session), slot.c_str(), static_cast<uint64_t>(updates), values.data(),
         values.size());
    return to_array(env, values.data(), values.size());
  });
}

ZO_NATIVE(jbyteArray, TrainingSession, nativeReplaySlotBytes)
(JNIEnv* env, jclass, jlong session, jstring name, jlong updates, jlong size) {
  return guarded(env, [&]() -> jbyteArray {
    const std::string slot = to_utf8(env, name);
    std::vector<uint8_t> bytes(static_cast<size_t>(size));
    call(env, zo_session_replay_slot_bytes, session_of(session), slot.c_str(), static_cast<uint64_t>(updates),
         static_cast<void*>(bytes.data()), bytes.size());
    return to_array(env, bytes.data(), bytes.size());
  });
}

ZO_NATIVE(void, TrainingSession, nativeWriteSlot)
(JNIEnv* env, jclass, jlong session, jstring name, jfloatArray values) {
  guarded(env, [&] {
    const std::string slot = to_utf8(env, name);
    const std::vector<float> given = to_vector(env, values);
    call(env, zo_session_write_slot, session_of(session), slot.c_str(), given.data(), given.size());
  });
}

ZO_NATIVE(void, TrainingSession, nativeWriteSlotBytes)
(JNIEnv* env, jclass, jlong session, jstring name, jbyteArray bytes) {
  guarded(env, [&] {
    const std::string slot = to_utf8(env, name);
    const std::vector<uint8_t> given = to_vector(env, bytes);
    call(env, zo_session_write_slot_bytes, session_of(session), slot.c_str(), static_cast<const void*>(given.data()),
         given.size());
  });
}

ZO_NATIVE(jobject, TrainingSession, nativeRecord)(JNIEnv* env, jclass, jlong session, jlong index) {
  return guarded(env, [&]() -> jobject {
    auto info = sized<zo_info>();
    call(env, zo_session_info, session_of(session), &info);
    std::vector<float> gradients(info.queries);
    auto record = sized<zo_record>();
    call(env, zo_session_record, session_of(session), static_cast<uint64_t>(index), &record, gradients.data());
    // Varargs promote a float to double, which NewObject expects of an F.
    return make(env, "TrajectoryRecord", "(JFFF[F)V", bits(record.step), record.lr, record.eps, record.loss,
                to_array(env, gradients.data(), gradients.size()));
  });
}

ZO_NATIVE(void, TrainingSession, nativeSave)(JNIEnv* env, jclass, jlong session) {
  guarded(env, [&] { call(env, zo_session_save, session_of(session)); });
}

// ---- noise -------------------------------------------------------------------------------------------------------

ZO_NATIVE(jintArray, Noise, nativeWords)
(JNIEnv* env, jclass, jlong seed, jint block, jint tensor_id, jint query, jint step) {
  return guarded(env, [&]() -> jintArray {
    uint32_t words[4];
    zo_rng_words(static_cast<uint64_t>(seed), static_cast<uint32_t>(block), static_cast<uint32_t>(tensor_id),
                 static_cast<uint32_t>(query), static_cast<uint32_t>(step), words);
    return to_array(env, words, 4);
  });
}

namespace {

jfloatArray noise(JNIEnv* env, decltype(&zo_rng_normals) make, jlong seed, jint tensor_id, jint query, jint step,
                  jlong first, jint count) {
  return guarded(env, [&]() -> jfloatArray {
    std::vector<float> made(static_cast<size_t>(count));
    make(static_cast<uint64_t>(seed), static_cast<uint32_t>(tensor_id), static_cast<uint32_t>(query),
         static_cast<uint32_t>(step), static_cast<uint64_t>(first), made.size(), made.data());
    return to_array(env, made.data(), made.size());
  });
}

}  // namespace

ZO_NATIVE(jfloatArray, Noise, nativeNormals)
(JNIEnv* env, jclass, jlong seed, jint tensor_id, jint query, jint step, jlong first, jint count) {
  return noise(env, zo_rng_normals, seed, tensor_id, query, step, first, count);
}

ZO_NATIVE(jfloatArray, Noise, nativeSigns)
(JNIEnv* env, jclass, jlong seed, jint tensor_id, jint query, jint step, jlong first, jint count) {
  return noise(env, zo_rng_signs, seed, tensor_id, query, step, first, count);
}

ZO_NATIVE(jintArray, Noise, nativePermutation)(JNIEnv* env, jclass, jlong seed, jint epoch, jint count) {
  return guarded(env, [&]() -> jintArray {
    std::vector<uint32_t> order(static_cast<size_t>(count));
    zo_rng_permutation(static_cast<uint64_t>(seed), static_cast<uint32_t>(epoch), static_cast<uint32_t>(count),
                       order.data());
    return to_array(env, order.data(), order.size());
  });
}
