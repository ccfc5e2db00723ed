// The native methods of zoexport.session that generate, over the C ABI.
#include "jni_support.h"

using namespace zoexport::jni;

namespace {

struct Text {
  Listener listener;
  std::vector<int64_t> tokens;
};

int32_t on_token(void* user, int64_t token) {
  static_cast<Text*>(user)->tokens.push_back(token);
  return 0;
}

int32_t on_text(void* user, const char* text, size_t size) {
  return static_cast<const Text*>(user)->listener.ends([&](JNIEnv* env, jobject object, jmethodID method) {
    return env->CallBooleanMethod(object, method, to_string(env, text, size));
  });
}

}  // namespace

ZO_NATIVE(jobject, TrainingSession, nativeGenerate)
(JNIEnv* env, jclass, jlong session, jstring prompt, jobjectArray roles, jobjectArray contents, jint max_tokens,
 jobjectArray stop, jstring adapter, jboolean untrained, jdouble temperature, jint top_k, jdouble top_p, jdouble min_p,
 jdouble repetition_penalty, jlong seed, jboolean keep, jboolean sliding, jobject listener) {
  return guarded(env, [&]() -> jobject {
    auto options = sized<zo_generate_options>();
    options.max_tokens = static_cast<uint32_t>(max_tokens);
    const OptionalText text(env, prompt), name(env, adapter);
    options.text = text.c_str();
    options.text_size = text.size();
    const std::vector<std::string> role_texts = to_texts(env, roles);
    const std::vector<std::string> content_texts = to_texts(env, contents);
    std::vector<zo_message> messages;
    for (size_t i = 0; i < role_texts.size(); ++i) {
      messages.push_back({role_texts[i].c_str(), content_texts[i].c_str()});
    }
    options.messages = messages.data();
    options.message_count = messages.size();
    const std::vector<std::string> stop_texts = to_texts(env, stop);
    std::vector<const char*> stops;
    for (const std::string& one : stop_texts) {
      stops.push_back(one.c_str());
    }
    options.stop_strings = stops.data();
    options.stop_string_count = stops.size();
    options.adapter = name.c_str();
    options.untrained = untrained == JNI_TRUE ? 1 : 0;
    options.temperature = temperature;
    options.top_k = static_cast<uint32_t>(top_k);
    options.top_p = top_p;
    options.min_p = min_p;
    options.repetition_penalty = repetition_penalty;
    options.seed = static_cast<uint64_t>(seed);
    options.on_text = &on_text;
    options.keep = keep == JNI_TRUE ? 1 : 0;
    options.sliding = sliding == JNI_TRUE ? 1 : 0;
    Text told = {Listener(env, listener, "OnText", "onText", "(Ljava/lang/String;)Z"), {}};
    told.tokens.reserve(options.max_tokens < 4096 ? options.max_tokens + 1 : 4096);
    auto made = sized<zo_generation>();
    call(env, zo_session_generate, session_of(session), &options, &on_token, static_cast<void*>(&told), &made);
    return make(env, "Generation", "(Ljava/lang/String;[JIJDDJJ)V", to_string(env, made.text, made.text_size),
                to_array(env, told.tokens.data(), told.tokens.size()), static_cast<jint>(made.stop),
                bits(made.prompt_tokens), made.prefill_seconds, made.decode_seconds, bits(made.anonymous_bytes),
                bits(made.kept_tokens));
  });
}

ZO_NATIVE(void, TrainingSession, nativeForget)(JNIEnv* env, jclass, jlong session) {
  guarded(env, [&] { call(env, zo_session_forget, session_of(session)); });
}

ZO_NATIVE(void, TrainingSession, nativeLoadAdapter)(JNIEnv* env, jclass, jlong session, jstring name, jstring folder) {
  guarded(env, [&] {
    const std::string called = to_utf8(env, name);
    const std::string path = to_utf8(env, folder);
    call(env, zo_session_load_adapter, session_of(session), called.c_str(), path.c_str());
  });
}

ZO_NATIVE(void, TrainingSession, nativeExportAdapter)
(JNIEnv* env, jclass, jlong session, jstring target, jint format, jint outtype, jboolean replace) {
  guarded(env, [&] {
    const std::string path = to_utf8(env, target);
    const zo_export_options options{sizeof(options), format, outtype, replace == JNI_TRUE ? 1u : 0u};
    call(env, zo_session_export_adapter, session_of(session), &options, path.c_str());
  });
}

ZO_NATIVE(void, TrainingSession, nativeDropAdapter)(JNIEnv* env, jclass, jlong session, jstring name) {
  guarded(env, [&] {
    const std::string called = to_utf8(env, name);
    call(env, zo_session_drop_adapter, session_of(session), called.c_str());
  });
}

// Null beyond the last.
ZO_NATIVE(jstring, TrainingSession, nativeAdapter)(JNIEnv* env, jclass, jlong session, jint index) {
  return guarded(env, [&]() -> jstring {
    const char* name = nullptr;
    zo_error error;
    const zo_status found = zo_session_adapter(session_of(session), static_cast<uint32_t>(index), &name, &error);
    return found == ZO_OK ? to_string(env, name) : nullptr;
  });
}
