// What the glue needs of JNI: text, arrays, objects, and errors as Java exceptions.
#ifndef ZOEXPORT_JNI_SUPPORT_H_
#define ZOEXPORT_JNI_SUPPORT_H_

#include <jni.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "zoexport/session.h"

namespace zoexport::jni {

// A Java exception is pending. Unwinds our own frames up to `guarded`; it never crosses the C ABI.
struct Pending {};

// A native method's body: what it throws becomes, or already is, a Java exception.
template <typename Body>
auto guarded(JNIEnv* env, Body body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const Pending&) {
  } catch (const std::bad_alloc&) {
    if (jclass type = env->FindClass("java/lang/OutOfMemoryError")) {
      env->ThrowNew(type, "zoexport");
    }
  }
  return decltype(body())();
}

// The result of a JNI function, unless it left an exception.
template <typename T>
T checked(JNIEnv* env, T result) {
  if (env->ExceptionCheck()) {
    throw Pending{};
  }
  return result;
}

// Frees the local references that are made while it lives.
class Frame {
 public:
  explicit Frame(JNIEnv* env) : env_(env) {
    if (env->PushLocalFrame(8) != JNI_OK) {
      throw Pending{};
    }
  }
  Frame(const Frame&) = delete;
  ~Frame() { env_->PopLocalFrame(nullptr); }

 private:
  JNIEnv* env_;
};

// The ZoException of its kind.
jobject to_exception(JNIEnv* env, const zo_error& error);
[[noreturn]] void raise(JNIEnv* env, const zo_error& error);

// Calls a verb of the C ABI; its error is thrown as the ZoException of its kind.
template <typename Verb, typename... Arguments>
void call(JNIEnv* env, Verb verb, Arguments... arguments) {
  zo_error error;
  const zo_status status = verb(arguments..., &error);
  checked(env, status);  // a progress callback's own exception goes before the ZO_CANCELLED that it led to
  if (status != ZO_OK) {
    raise(env, error);
  }
}

// Proper UTF-8 both ways: what JNI calls UTF is another encoding, in which a path with an emoji is another path.
std::string to_utf8(JNIEnv* env, jstring text);
jstring to_string(JNIEnv* env, const char* utf8);
jstring to_string(JNIEnv* env, const char* utf8, size_t size);
std::vector<std::string> to_texts(JNIEnv* env, jobjectArray array);

// Never without room, so that no data() is a null pointer, which would hide what else is wrong with a call.
std::vector<int64_t> to_vector(JNIEnv* env, jlongArray array);
std::vector<float> to_vector(JNIEnv* env, jfloatArray array);
std::vector<uint8_t> to_vector(JNIEnv* env, jbyteArray array);
jlongArray to_array(JNIEnv* env, const int64_t* values, size_t count);
jintArray to_array(JNIEnv* env, const uint32_t* values, size_t count);
jbyteArray to_array(JNIEnv* env, const uint8_t* values, size_t count);
jfloatArray to_array(JNIEnv* env, const float* values, size_t count);
jdoubleArray to_array(JNIEnv* env, const double* values, size_t count);

// A text that may be null, as C has it while this object lives.
class OptionalText {
 public:
  OptionalText(JNIEnv* env, jstring text) : is_there_(text != nullptr), text_(is_there_ ? to_utf8(env, text) : "") {}
  const char* c_str() const { return is_there_ ? text_.c_str() : nullptr; }
  size_t size() const { return text_.size(); }

 private:
  bool is_there_;
  std::string text_;
};

// A struct of the C ABI, for the library to fill or for a caller to set.
template <typename T>
T sized() {
  T empty = {};
  empty.struct_size = sizeof(T);
  return empty;
}

// What opens a bundle; its strings are those of the object.
class OpenOptions {
 public:
  OpenOptions(JNIEnv* env, jstring cache, jstring trusted_keys, jstring engine_name = nullptr)
      : cache_(env, cache), keys_(env, trusted_keys), engine_name_(env, engine_name) {
    options_.cache = cache_.c_str();
    options_.trusted_keys = keys_.c_str();
    options_.engine_name = engine_name_.c_str();
  }
  OpenOptions(const OpenOptions&) = delete;
  zo_open_options* operator->() { return &options_; }
  const zo_open_options* get() const { return &options_; }

 private:
  OptionalText cache_;
  OptionalText keys_;
  OptionalText engine_name_;
  zo_open_options options_ = sized<zo_open_options>();
};

// A host's object that the library calls back in a call, or null.
class Listener {
 public:
  Listener(JNIEnv* env, jobject object, const char* type, const char* method, const char* signature);

  // Whether the call is to end: the host's method says so, or it threw, and its exception stays pending until the call
  // returns. `call` calls it.
  template <typename Call>
  int32_t ends(Call call) const {
    if (object_ == nullptr) {
      return 0;
    }
    // The library does not return to Java in between.
    const bool end = guarded(env_, [&]() -> bool {
      const Frame frame(env_);
      return checked(env_, call(env_, object_, method_)) == JNI_TRUE;
    });
    return end || env_->ExceptionCheck() == JNI_TRUE ? 1 : 0;
  }

 private:
  JNIEnv* env_;
  jobject object_;
  jmethodID method_;
};

// A new object of a class of zoexport.session, by the constructor with this signature.
template <typename... Arguments>
jobject make(JNIEnv* env, const char* name, const char* signature, Arguments... arguments) {
  jclass type = checked(env, env->FindClass((std::string("zoexport/session/") + name).c_str()));
  jmethodID constructor = checked(env, env->GetMethodID(type, "<init>", signature));
  return checked(env, env->NewObject(type, constructor, arguments...));
}

// A C integer as the Java one of the same size: the bits stay.
inline jint bits(uint32_t value) { return static_cast<jint>(value); }
inline jlong bits(uint64_t value) { return static_cast<jlong>(value); }

inline zo_session* session_of(jlong address) { return reinterpret_cast<zo_session*>(address); }

}  // namespace zoexport::jni

// The native method `name` of a class of zoexport.session.
#define ZO_NATIVE(result, type, name) extern "C" JNIEXPORT result JNICALL Java_zoexport_session_##type##_##name

#endif  // ZOEXPORT_JNI_SUPPORT_H_
