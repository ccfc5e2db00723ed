// The native method of zoexport.session.PackedBundle.
#include "jni_support.h"

using namespace zoexport::jni;

namespace {

struct Listener {
  JNIEnv* env;
  jobject object;
  jmethodID method;
};

// Ends it where the host says so, and where its code threw: the exception stays pending until the call returns.
int32_t on_progress(void* user, uint64_t done, uint64_t total) {
  const auto* listener = static_cast<const Listener*>(user);
  const bool stop = guarded(listener->env, [&]() -> bool {
    const jboolean answer =
        listener->env->CallBooleanMethod(listener->object, listener->method, bits(done), bits(total));
    return checked(listener->env, answer) == JNI_TRUE;
  });
  return stop || listener->env->ExceptionCheck() == JNI_TRUE ? 1 : 0;
}

}  // namespace

extern "C" JNIEXPORT void JNICALL Java_zoexport_session_PackedBundle_nativeUnpack(JNIEnv* env, jclass, jstring file,
                                                                                  jstring folder, jboolean replace,
                                                                                  jstring trusted_keys,
                                                                                  jobject listener) {
  guarded(env, [&] {
    const std::string from = to_utf8(env, file), to = to_utf8(env, folder);
    const std::string keys = trusted_keys == nullptr ? "" : to_utf8(env, trusted_keys);
    Listener told = {env, listener, nullptr};
    zo_unpack_options options = {};
    options.struct_size = sizeof(options);
    options.replace = replace == JNI_TRUE ? 1 : 0;
    options.trusted_keys = trusted_keys == nullptr ? nullptr : keys.c_str();
    if (listener != nullptr) {
      jclass type = checked(env, env->FindClass("zoexport/session/OnUnpacked"));
      told.method = checked(env, env->GetMethodID(type, "onUnpacked", "(JJ)Z"));
      options.on_progress = &on_progress;
      options.user = &told;
    }
    call(env, zo_bundle_unpack, from.c_str(), to.c_str(), &options);
  });
}
