// The native methods of zoexport.session.PackedBundle and BundleEngines.
#include "jni_support.h"

using namespace zoexport::jni;

ZO_NATIVE(void, PackedBundle, nativeUnpack)
(JNIEnv* env, jclass, jstring file, jstring folder, jboolean replace, jstring trusted_keys, jobject on_unpacked) {
  guarded(env, [&] {
    const std::string from = to_utf8(env, file), to = to_utf8(env, folder);
    const OptionalText keys(env, trusted_keys);
    Listener listener(env, on_unpacked, "OnUnpacked", "onUnpacked", "(JJ)Z");
    auto options = sized<zo_unpack_options>();
    options.replace = replace == JNI_TRUE ? 1 : 0;
    options.trusted_keys = keys.c_str();
    options.on_progress = [](void* user, uint64_t done, uint64_t total) {
      return static_cast<const Listener*>(user)->ends([&](JNIEnv* env, jobject object, jmethodID method) {
        return env->CallBooleanMethod(object, method, bits(done), bits(total));
      });
    };
    options.user = &listener;
    call(env, zo_bundle_unpack, from.c_str(), to.c_str(), &options);
  });
}

ZO_NATIVE(jobject, BundleEngines, nativeOf)(JNIEnv* env, jclass, jstring bundle, jstring trusted_keys) {
  return guarded(env, [&]() -> jobject {
    const std::string folder = to_utf8(env, bundle);
    const OpenOptions options(env, nullptr, trusted_keys);
    auto found = sized<zo_engines>();
    call(env, zo_bundle_engines, folder.c_str(), options.get(), &found);
    return make(env, "BundleEngines", "(Ljava/lang/String;Ljava/lang/String;)V", to_string(env, found.own),
                found.fallback[0] == '\0' ? nullptr : to_string(env, found.fallback));
  });
}
