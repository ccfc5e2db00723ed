// The native methods of zoexport.session.TrainingJob, over job.h.
#include <cmath>

#include "jni_support.h"
#include "zoexport/job.h"

using namespace zoexport::jni;

namespace {

zo_job* job_of(jlong address) { return reinterpret_cast<zo_job*>(address); }

// The host's object for the time of a run. What its code throws stays pending, and ends the run.
struct Host {
  JNIEnv* env;
  zo_job* job;
  jobject object;
  jmethodID conditions;
  jmethodID changed;
};

template <typename Body>
void from_run(void* user, Body body) {
  const auto* host = static_cast<const Host*>(user);
  JNIEnv* env = host->env;
  if (env->ExceptionCheck() == JNI_TRUE) {
    return;
  }
  // The run does not return to Java between steps.
  guarded(env, [&] {
    const Frame frame(env);
    body(*host);
  });
  if (env->ExceptionCheck() == JNI_TRUE) {
    zo_job_pause(host->job, ZO_WAIT_ASKED);
  }
}

uint64_t bytes_of(double value, uint64_t unknown) { return std::isnan(value) ? unknown : static_cast<uint64_t>(value); }

void conditions(void* user, zo_conditions* now) {
  from_run(user, [&](const Host& host) {
    JNIEnv* env = host.env;
    auto values = static_cast<jdoubleArray>(checked(env, env->CallObjectMethod(host.object, host.conditions)));
    double told[6];
    env->GetDoubleArrayRegion(values, 0, 6, told);
    checked(env, 0);
    now->heat = std::isnan(told[0]) ? now->heat : static_cast<int32_t>(told[0]);
    now->celsius = told[1];
    now->battery = told[2];
    now->charging = std::isnan(told[3]) ? now->charging : static_cast<int32_t>(told[3]);
    now->free_bytes = bytes_of(told[4], now->free_bytes);
    now->memory_bytes = bytes_of(told[5], now->memory_bytes);
  });
}

void changed(void* user) {
  from_run(user, [&](const Host& host) {
    host.env->CallVoidMethod(host.object, host.changed);
    checked(host.env, 0);
  });
}

jobject to_object(JNIEnv* env, int32_t there, const zo_evaluation& found) {
  return there == 0 ? nullptr
                    : make(env, "Evaluation", "(DDDJD)V", found.loss, found.accuracy, found.token_accuracy,
                           bits(found.examples), found.margin);
}

}  // namespace

ZO_NATIVE(jlong, TrainingJob, nativeOpen)(JNIEnv* env, jclass, jstring folder) {
  return guarded(env, [&]() -> jlong {
    const std::string path = to_utf8(env, folder);
    zo_job* job = nullptr;
    call(env, zo_job_open, path.c_str(), &job);
    return reinterpret_cast<jlong>(job);
  });
}

ZO_NATIVE(void, TrainingJob, nativeClose)(JNIEnv*, jclass, jlong job) { zo_job_close(job_of(job)); }

ZO_NATIVE(void, TrainingJob, nativeStart)
(JNIEnv* env, jclass, jlong job, jstring bundle, jstring data, jstring held_out, jlong steps, jdouble lr,
 jboolean evaluate, jint eval_every, jint patience, jint keep, jstring engine_name, jint answer, jstring cache,
 jstring trusted_keys) {
  guarded(env, [&] {
    const OpenOptions options(env, cache, trusted_keys);
    const std::string folder = to_utf8(env, bundle), file = to_utf8(env, data);
    const OptionalText other(env, held_out), engine(env, engine_name);
    const zo_job_request request = {sizeof(zo_job_request),
                                    evaluate == JNI_TRUE ? 1 : 0,
                                    folder.c_str(),
                                    file.c_str(),
                                    other.c_str(),
                                    static_cast<uint64_t>(steps),
                                    lr,
                                    static_cast<uint32_t>(eval_every),
                                    static_cast<uint32_t>(patience),
                                    keep,
                                    0,
                                    engine.c_str()};
    call(env, zo_job_start, job_of(job), &request, static_cast<int32_t>(answer), options.get());
  });
}

ZO_NATIVE(void, TrainingJob, nativeRun)
(JNIEnv* env, jclass, jlong job, jobject listener, jdouble poll_seconds, jstring cache, jstring trusted_keys) {
  guarded(env, [&] {
    const OpenOptions options(env, cache, trusted_keys);
    auto limits = sized<zo_limits>();
    call(env, zo_limits_default, &limits);
    limits.poll_seconds = poll_seconds;
    jclass type = checked(env, env->GetObjectClass(listener));
    Host told = {env, job_of(job), listener, checked(env, env->GetMethodID(type, "conditions", "()[D")),
                 checked(env, env->GetMethodID(type, "changed", "()V"))};
    const zo_job_host host = {sizeof(zo_job_host), 0, &told, &conditions, &changed, &limits};
    call(env, zo_job_run, job_of(job), &host, options.get());
  });
}

ZO_NATIVE(void, TrainingJob, nativePause)(JNIEnv*, jclass, jlong job, jint reason) {
  zo_job_pause(job_of(job), reason);
}

ZO_NATIVE(void, TrainingJob, nativeCancel)(JNIEnv* env, jclass, jlong job) {
  guarded(env, [&] { call(env, zo_job_cancel, job_of(job)); });
}

ZO_NATIVE(void, TrainingJob, nativeDiscard)(JNIEnv* env, jclass, jlong job) {
  guarded(env, [&] { call(env, zo_job_discard, job_of(job)); });
}

ZO_NATIVE(jobject, TrainingJob, nativeView)(JNIEnv* env, jclass, jlong job) {
  return guarded(env, [&]() -> jobject {
    auto view = sized<zo_job_view>();
    call(env, zo_job_view_of, job_of(job), &view);
    return make(env, "JobView", "(IIJJJJDDDJLzoexport/session/Evaluation;Lzoexport/session/Evaluation;J)V",
                static_cast<jint>(view.phase), static_cast<jint>(view.reason), bits(view.step), bits(view.steps),
                bits(view.examples), bits(view.shortened), view.loss, view.seconds_left, view.celsius,
                bits(view.anonymous_bytes), to_object(env, view.has_before, view.before),
                to_object(env, view.has_after, view.after), view.has_best != 0 ? bits(view.best_step) : jlong{-1});
  });
}

// Steps and losses by turns.
ZO_NATIVE(jdoubleArray, TrainingJob, nativeLosses)(JNIEnv* env, jclass, jlong job) {
  return guarded(env, [&]() -> jdoubleArray {
    size_t count = 0;
    call(env, zo_job_losses, job_of(job), static_cast<zo_loss_point*>(nullptr), &count);
    // Of a job that runs, more may have come meanwhile.
    std::vector<zo_loss_point> points;
    while (points.size() < count) {
      points.resize(count);
      call(env, zo_job_losses, job_of(job), points.data(), &count);
    }
    std::vector<double> values;
    for (size_t i = 0; i < count; ++i) {
      values.push_back(static_cast<double>(points[i].step));
      values.push_back(points[i].loss);
    }
    return to_array(env, values.data(), values.size());
  });
}

// Null beyond the last.
ZO_NATIVE(jobject, TrainingJob, nativeEvaluated)(JNIEnv* env, jclass, jlong job, jint index) {
  return guarded(env, [&]() -> jobject {
    auto found = sized<zo_evaluated>();
    zo_error error;
    return zo_job_evaluated(job_of(job), static_cast<uint32_t>(index), &found, &error) != ZO_OK
               ? nullptr
               : make(env, "StepEvaluation", "(JDDDZ)V", bits(found.step), found.loss, found.accuracy,
                      found.token_accuracy, static_cast<jboolean>(found.best != 0));
  });
}

ZO_NATIVE(jobject, TrainingJob, nativeProblem)(JNIEnv* env, jclass, jlong job) {
  return guarded(env, [&]() -> jobject {
    zo_error problem;
    zo_job_problem(job_of(job), &problem);
    return problem.code == ZO_OK ? nullptr : to_exception(env, problem);
  });
}

ZO_NATIVE(jobject, TrainingJob, nativeRequest)(JNIEnv* env, jclass, jlong job) {
  return guarded(env, [&]() -> jobject {
    auto found = sized<zo_job_request>();
    call(env, zo_job_requested, job_of(job), &found);
    return found.bundle[0] == '\0'
               ? nullptr
               : make(env, "JobRequest",
                      "(Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;JDZIIILjava/lang/String;)V",
                      to_string(env, found.bundle), to_string(env, found.data), to_string(env, found.held_out),
                      bits(found.steps), found.lr, static_cast<jboolean>(found.evaluate != 0),
                      static_cast<jint>(found.eval_every), static_cast<jint>(found.patience), found.keep,
                      to_string(env, found.engine_name));
  });
}

ZO_NATIVE(jlong, TrainingJob, nativeSession)(JNIEnv* env, jclass, jlong job, jstring cache, jstring trusted_keys) {
  return guarded(env, [&]() -> jlong {
    const OpenOptions options(env, cache, trusted_keys);
    zo_session* session = nullptr;
    call(env, zo_job_session, job_of(job), options.get(), &session);
    return reinterpret_cast<jlong>(session);
  });
}

// Each example's texts are a prompt and a completion, or, of a chat, roles and contents in turn.
ZO_NATIVE(void, TrainingJob, nativeWrite)
(JNIEnv* env, jclass, jstring path, jobjectArray examples, jbooleanArray chats, jboolean append) {
  guarded(env, [&] {
    const std::string file = to_utf8(env, path);
    const auto count = static_cast<size_t>(env->GetArrayLength(examples));
    std::vector<jboolean> is_chat(count);
    env->GetBooleanArrayRegion(chats, 0, static_cast<jsize>(count), is_chat.data());
    std::vector<std::vector<std::string>> texts(checked(env, count));
    std::vector<std::vector<zo_message>> messages(count);
    std::vector<zo_typed_example> typed(count, sized<zo_typed_example>());
    for (size_t i = 0; i < count; ++i) {
      jobject array = checked(env, env->GetObjectArrayElement(examples, static_cast<jsize>(i)));
      texts[i] = to_texts(env, static_cast<jobjectArray>(array));
      env->DeleteLocalRef(array);
      for (size_t at = 0; at + 1 < texts[i].size(); at += 2) {
        messages[i].push_back({texts[i][at].c_str(), texts[i][at + 1].c_str()});
      }
      if (is_chat[i] == JNI_TRUE) {
        typed[i].messages = messages[i].data();
        typed[i].message_count = messages[i].size();
      } else {
        typed[i].prompt = texts[i][0].c_str();
        typed[i].completion = texts[i][1].c_str();
      }
    }
    call(env, zo_typed_write, file.c_str(), typed.data(), count, append == JNI_TRUE ? 1 : 0);
  });
}
