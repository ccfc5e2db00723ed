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
  // The run does not return to Java between steps: its local references are freed here.
  if (env->ExceptionCheck() == JNI_TRUE || env->PushLocalFrame(8) != JNI_OK) {
    return;
  }
  guarded(env, [&] { body(*host); });
  if (env->ExceptionCheck() == JNI_TRUE) {
    zo_job_pause(host->job, ZO_WAIT_ASKED);
  }
  env->PopLocalFrame(nullptr);
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

// What opens the job's bundle; the strings are those of the object.
struct Options {
  std::string cache;
  std::string keys;
  zo_open_options options = {};

  Options(JNIEnv* env, jstring packed, jstring trusted_keys) {
    options.struct_size = sizeof(options);
    if (packed != nullptr) {
      cache = to_utf8(env, packed);
      options.cache = cache.c_str();
    }
    if (trusted_keys != nullptr) {
      keys = to_utf8(env, trusted_keys);
      options.trusted_keys = keys.c_str();
    }
  }
};

jobject to_object(JNIEnv* env, int32_t there, const zo_evaluation& found) {
  return there == 0 ? nullptr
                    : make(env, "Evaluation", "(DDDJ)V", found.loss, found.accuracy, found.token_accuracy,
                           bits(found.examples));
}

}  // namespace

#define ZO_NATIVE(result, name) extern "C" JNIEXPORT result JNICALL Java_zoexport_session_TrainingJob_##name

ZO_NATIVE(jlong, nativeOpen)(JNIEnv* env, jclass, jstring folder) {
  return guarded(env, [&]() -> jlong {
    const std::string path = to_utf8(env, folder);
    zo_job* job = nullptr;
    call(env, zo_job_open, path.c_str(), &job);
    return reinterpret_cast<jlong>(job);
  });
}

ZO_NATIVE(void, nativeClose)(JNIEnv*, jclass, jlong job) { zo_job_close(job_of(job)); }

ZO_NATIVE(void, nativeStart)
(JNIEnv* env, jclass, jlong job, jstring bundle, jstring data, jstring held_out, jlong steps, jdouble lr,
 jboolean evaluate, jint answer, jstring cache, jstring trusted_keys) {
  guarded(env, [&] {
    const Options options(env, cache, trusted_keys);
    const std::string folder = to_utf8(env, bundle), file = to_utf8(env, data);
    const std::string other = held_out == nullptr ? "" : to_utf8(env, held_out);
    const zo_job_request request = {sizeof(zo_job_request),
                                    evaluate == JNI_TRUE ? 1 : 0,
                                    folder.c_str(),
                                    file.c_str(),
                                    held_out == nullptr ? nullptr : other.c_str(),
                                    static_cast<uint64_t>(steps),
                                    lr};
    call(env, zo_job_start, job_of(job), &request, static_cast<int32_t>(answer), &options.options);
  });
}

ZO_NATIVE(void, nativeRun)
(JNIEnv* env, jclass, jlong job, jobject listener, jdouble poll_seconds, jstring cache, jstring trusted_keys) {
  guarded(env, [&] {
    const Options options(env, cache, trusted_keys);
    zo_limits limits = {};
    limits.struct_size = sizeof(limits);
    call(env, zo_limits_default, &limits);
    limits.poll_seconds = poll_seconds;
    jclass type = checked(env, env->GetObjectClass(listener));
    Host told = {env, job_of(job), listener, checked(env, env->GetMethodID(type, "conditions", "()[D")),
                 checked(env, env->GetMethodID(type, "changed", "()V"))};
    const zo_job_host host = {sizeof(zo_job_host), 0, &told, &conditions, &changed, &limits};
    call(env, zo_job_run, job_of(job), &host, &options.options);
  });
}

ZO_NATIVE(void, nativePause)(JNIEnv*, jclass, jlong job, jint reason) { zo_job_pause(job_of(job), reason); }

ZO_NATIVE(void, nativeCancel)(JNIEnv* env, jclass, jlong job) {
  guarded(env, [&] { call(env, zo_job_cancel, job_of(job)); });
}

ZO_NATIVE(void, nativeDiscard)(JNIEnv* env, jclass, jlong job) {
  guarded(env, [&] { call(env, zo_job_discard, job_of(job)); });
}

ZO_NATIVE(jobject, nativeView)(JNIEnv* env, jclass, jlong job) {
  return guarded(env, [&]() -> jobject {
    zo_job_view view = {};
    view.struct_size = sizeof(view);
    call(env, zo_job_view_of, job_of(job), &view);
    return make(env, "JobView", "(IIJJJJDDDJLzoexport/session/Evaluation;Lzoexport/session/Evaluation;)V",
                static_cast<jint>(view.phase), static_cast<jint>(view.reason), bits(view.step), bits(view.steps),
                bits(view.examples), bits(view.shortened), view.loss, view.seconds_left, view.celsius,
                bits(view.anonymous_bytes), to_object(env, view.has_before, view.before),
                to_object(env, view.has_after, view.after));
  });
}

// Steps and losses by turns.
ZO_NATIVE(jdoubleArray, nativeLosses)(JNIEnv* env, jclass, jlong job) {
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

ZO_NATIVE(jobject, nativeProblem)(JNIEnv* env, jclass, jlong job) {
  return guarded(env, [&]() -> jobject {
    zo_error problem;
    zo_job_problem(job_of(job), &problem);
    return problem.code == ZO_OK ? nullptr : to_exception(env, problem);
  });
}

ZO_NATIVE(jobject, nativeRequest)(JNIEnv* env, jclass, jlong job) {
  return guarded(env, [&]() -> jobject {
    zo_job_request found = {};
    found.struct_size = sizeof(found);
    call(env, zo_job_requested, job_of(job), &found);
    return found.bundle[0] == '\0'
               ? nullptr
               : make(env, "JobRequest", "(Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;JDZ)V",
                      to_string(env, found.bundle), to_string(env, found.data), to_string(env, found.held_out),
                      bits(found.steps), found.lr, static_cast<jboolean>(found.evaluate != 0));
  });
}

ZO_NATIVE(jlong, nativeSession)(JNIEnv* env, jclass, jlong job, jstring cache, jstring trusted_keys) {
  return guarded(env, [&]() -> jlong {
    const Options options(env, cache, trusted_keys);
    zo_session* session = nullptr;
    call(env, zo_job_session, job_of(job), &options.options, &session);
    return reinterpret_cast<jlong>(session);
  });
}

ZO_NATIVE(void, nativeWrite)(JNIEnv* env, jclass, jstring path, jobjectArray prompts, jobjectArray completions) {
  guarded(env, [&] {
    const std::string file = to_utf8(env, path);
    const std::vector<std::string> first = to_texts(env, prompts), second = to_texts(env, completions);
    std::vector<zo_typed> typed;
    for (size_t i = 0; i < first.size(); ++i) {
      typed.push_back({first[i].c_str(), second[i].c_str()});
    }
    call(env, zo_examples_write, file.c_str(), typed.data(), typed.size());
  });
}
