// Native methods over job.h, in its order.
#include "jni_support.h"
#include "zoexport/job.h"

using namespace zoexport::jni;

namespace {

// A run of a job. An exception of the host's code pauses the job, and is thrown when the run returns.
struct Run {
  Listener listener;
  zo_job* job;

  template <typename... Arguments>
  bool ends(Arguments... arguments) const {
    const bool end = listener.ends(arguments...);
    if (end) {
      zo_job_pause(job, "asked");
    }
    return end;
  }
};

void conditions(void* user, zo_conditions* now) {
  static_cast<const Run*>(user)->ends("onConditions", "(J)Z", reinterpret_cast<jlong>(now));
}

void changed(void* user) { static_cast<const Run*>(user)->ends("onChanged", "()Z"); }

}  // namespace

ZO_NATIVE(void, writeTyped)(JNIEnv* env, jobject, jstring path, jstring examples, jboolean append) {
  run(env, zo_typed_write, path, examples, append);
}

ZO_NATIVE(jlong, openJob)(JNIEnv* env, jobject, jstring folder, jstring options) {
  return opened<zo_job>(env, zo_job_open, folder, options, nullptr);
}

ZO_FREE(closeJob, zo_job_close)
ZO_RUN_TEXT(startJob, zo_job_start)

ZO_NATIVE(void, runJob)(JNIEnv* env, jobject, jlong job, jstring limits, jobject listener) {
  Run user{{env, listener}, Long{job}};
  const zo_job_host host = {&user, conditions, changed};
  run(env, zo_job_run, job, limits, &host);
}

// For Listener.onConditions; -1 and NaN stand for what is not known.
ZO_NATIVE(void, setConditions)
(JNIEnv*, jobject, jlong now, jint heat, jint charging, jdouble celsius, jdouble battery, jlong free, jlong memory) {
  *static_cast<zo_conditions*>(Long{now}) = {heat, charging, celsius, battery, Long{free}, Long{memory}};
}

ZO_NATIVE(void, pauseJob)(JNIEnv* env, jobject, jlong job, jstring reason) {
  guarded(env, [&] { zo_job_pause(Long{job}, Text(env, reason)); });
}

ZO_RUN(cancelJob, zo_job_cancel)
ZO_RUN(discardJob, zo_job_discard)
ZO_JSON(jobView, zo_job_view)
ZO_JSON(jobLosses, zo_job_losses)
ZO_JSON(jobRequest, zo_job_request)

ZO_NATIVE(jobject, jobProblem)(JNIEnv* env, jobject, jlong job) {
  return guarded(env, [&]() -> jobject {
    zo_error problem;
    zo_job_problem(Long{job}, &problem);
    return problem.code == ZO_OK ? nullptr : to_exception(env, problem);
  });
}

ZO_NATIVE(jlong, jobSession)(JNIEnv* env, jobject, jlong job) { return opened<zo_session>(env, zo_job_session, job); }
