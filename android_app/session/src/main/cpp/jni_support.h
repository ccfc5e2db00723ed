// JNI support: text, arrays, callbacks, and errors as Java exceptions.
#ifndef ZOEXPORT_JNI_SUPPORT_H_
#define ZOEXPORT_JNI_SUPPORT_H_

#include <jni.h>

#include <cstdint>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zoexport/session.h"

namespace zoexport::jni {

// A Java exception is pending. Unwinds frames of this library up to `guarded`; never crosses the C ABI.
struct Pending {};

// Runs the body of a native method. C++ exceptions become Java exceptions.
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

// Returns the result of a JNI function, unless it left an exception.
template <typename T>
T checked(JNIEnv* env, T result) {
  if (env->ExceptionCheck() == JNI_TRUE) {
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

// An array of the VM holds at most 2^31 - 1 elements.
inline jsize length(size_t count) {
  if (count > INT32_MAX) {
    throw std::bad_alloc();
  }
  return static_cast<jsize>(count);
}

// Copies an array. The vector has room even if it is empty: a null pointer would hide what else is wrong with a call.
template <typename T, typename Element, typename Array>
std::vector<T> copied(JNIEnv* env, Array array, void (JNIEnv::*copy)(Array, jsize, jsize, Element*)) {
  static_assert(sizeof(T) == sizeof(Element));
  const jsize count = env->GetArrayLength(array);
  std::vector<T> values(static_cast<size_t>(count));
  values.reserve(values.size() + 1);
  (env->*copy)(array, 0, count, reinterpret_cast<Element*>(values.data()));
  return checked(env, std::move(values));
}

inline std::vector<int64_t> to_vector(JNIEnv* env, jlongArray array) {
  return copied<int64_t>(env, array, &JNIEnv::GetLongArrayRegion);
}
inline std::vector<uint8_t> to_vector(JNIEnv* env, jbyteArray array) {
  return copied<uint8_t>(env, array, &JNIEnv::GetByteArrayRegion);
}

inline jbyteArray to_bytes(JNIEnv* env, const void* values, size_t size) {
  jbyteArray array = checked(env, env->NewByteArray(length(size)));
  env->SetByteArrayRegion(array, 0, static_cast<jsize>(size), static_cast<const jbyte*>(values));
  return array;
}

template <typename T>
jdoubleArray to_doubles(JNIEnv* env, const std::vector<T>& values) {
  const std::vector<double> numbers(values.begin(), values.end());
  jdoubleArray array = checked(env, env->NewDoubleArray(length(numbers.size())));
  env->SetDoubleArrayRegion(array, 0, static_cast<jsize>(numbers.size()), numbers.data());
  return array;
}

// Text passes as proper UTF-8. JNI's own functions use another encoding, in which a path with an emoji is another path.
inline jstring to_text(JNIEnv* env, std::string_view utf8) {
  jbyteArray bytes = to_bytes(env, utf8.data(), utf8.size());
  jclass type = checked(env, env->FindClass("java/lang/String"));
  jmethodID constructor = checked(env, env->GetMethodID(type, "<init>", "([BLjava/lang/String;)V"));
  jstring charset = checked(env, env->NewStringUTF("UTF-8"));
  return static_cast<jstring>(checked(env, env->NewObject(type, constructor, bytes, charset)));
}

inline std::string to_utf8(JNIEnv* env, jstring text) {
  const Frame frame(env);
  jclass type = checked(env, env->FindClass("java/lang/String"));
  jmethodID get = checked(env, env->GetMethodID(type, "getBytes", "(Ljava/lang/String;)[B"));
  jstring charset = checked(env, env->NewStringUTF("UTF-8"));
  auto bytes = static_cast<jbyteArray>(checked(env, env->CallObjectMethod(text, get, charset)));
  const std::vector<uint8_t> utf8 = to_vector(env, bytes);
  return std::string(utf8.begin(), utf8.end());
}

// Returns the ZoException for a status other than ZO_OK.
inline jobject to_exception(JNIEnv* env, const zo_error& error) {
  // In the order of zo_status, from 1.
  constexpr const char* kTypes[] = {"InvalidArgument", "Bundle",    "State",    "Data",    "Engine",
                                    "Diverged",        "Cancelled", "Internal", "Question"};
  const auto number = static_cast<size_t>(error.code) - 1;
  const std::string type_name = number < std::size(kTypes) ? kTypes[number] : "Internal";
  const std::string name = "zoexport/session/ZoException$" + type_name;
  jclass type = checked(env, env->FindClass(name.c_str()));
  const char* signature = "(Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;)V";
  jmethodID constructor = checked(env, env->GetMethodID(type, "<init>", signature));
  return checked(env, env->NewObject(type, constructor, to_text(env, error.where), to_text(env, error.found),
                                     to_text(env, error.expected), to_text(env, error.fix)));
}

[[noreturn]] inline void raise(JNIEnv* env, const zo_error& error) {
  env->Throw(static_cast<jthrowable>(to_exception(env, error)));
  throw Pending{};
}

// Text for the C ABI. Refuses zero characters, at which C would end the text.
class Text {
 public:
  Text(JNIEnv* env, jstring text) : text_(to_utf8(env, text)) {
    if (text_.find('\0') != std::string::npos) {
      raise(env, {ZO_INVALID_ARGUMENT, "a path or name", "a zero character", "text without one", "Correct the name."});
    }
  }
  operator const char*() const { return text_.c_str(); }

 private:
  std::string text_;
};

// A Java long: the address of a handle, or a number.
struct Long {
  jlong value;
  template <typename T>
  operator T*() const {
    return reinterpret_cast<T*>(value);
  }
  operator uint64_t() const { return static_cast<uint64_t>(value); }
};

// Converts an argument for Java.
template <typename T>
T to_java(JNIEnv*, T value) {
  return value;
}
inline jlong to_java(JNIEnv*, uint64_t value) { return static_cast<jlong>(value); }
inline jstring to_java(JNIEnv* env, std::string_view text) { return to_text(env, text); }

// The zoexport.session.Listener of a call. The C ABI gets its address as `user`.
struct Listener {
  JNIEnv* env;
  jobject object;

  operator void*() { return this; }
  // Calls a method. Returns whether the call has to end: the method returned true or threw. Its exception stays pending
  // until the verb returns, and the library may call back before that.
  template <typename... Arguments>
  bool ends(const char* method, const char* signature, Arguments... arguments) const {
    if (env->ExceptionCheck() == JNI_TRUE) {
      return true;
    }
    const bool end = guarded(env, [&]() -> bool {
      const Frame frame(env);
      jmethodID id = checked(env, env->GetMethodID(env->GetObjectClass(object), method, signature));
      return checked(env, env->CallBooleanMethod(object, id, to_java(env, arguments)...)) == JNI_TRUE;
    });
    return end || env->ExceptionCheck() == JNI_TRUE;
  }
};

// Converts an argument for the C ABI.
template <typename T>
T to_c(JNIEnv*, T value) {
  return value;
}
inline Text to_c(JNIEnv* env, jstring text) { return Text(env, text); }
inline Long to_c(JNIEnv*, jlong value) { return {value}; }
inline Listener to_c(JNIEnv* env, jobject listener) { return {env, listener}; }

// Calls a verb of the C ABI. Throws its error as a ZoException.
template <typename Verb, typename... Arguments>
void call(JNIEnv* env, Verb verb, Arguments... arguments) {
  zo_error error;
  const zo_status status = verb(to_c(env, arguments)..., &error);
  checked(env, status);  // a callback's exception takes precedence over the ZO_CANCELLED that it caused
  if (status != ZO_OK) {
    raise(env, error);
  }
}

// A native method for a verb without a result.
template <typename... Arguments>
void run(JNIEnv* env, Arguments... arguments) {
  guarded(env, [&] { call(env, arguments...); });
}

// A native method for a verb whose result is JSON.
template <typename... Arguments>
jstring json(JNIEnv* env, Arguments... arguments) {
  struct Result {
    char* text = nullptr;
    ~Result() { zo_free(text); }
  };
  return guarded(env, [&]() -> jstring {
    Result result;
    call(env, arguments..., &result.text);
    return to_text(env, result.text);
  });
}

// A native method for a verb whose result is a handle.
template <typename T, typename... Arguments>
jlong opened(JNIEnv* env, Arguments... arguments) {
  return guarded(env, [&]() -> jlong {
    T* handle = nullptr;
    call(env, arguments..., &handle);
    return reinterpret_cast<jlong>(handle);
  });
}

}  // namespace zoexport::jni

// A native method of zoexport.session.Native; then those for a verb that takes a handle alone, or a handle and text.
#define ZO_NATIVE(result, name) extern "C" JNIEXPORT result JNICALL Java_zoexport_session_Native_##name
#define ZO_JSON(name, verb) \
  ZO_NATIVE(jstring, name)(JNIEnv * env, jobject, jlong handle) { return json(env, verb, handle); }
#define ZO_FREE(name, verb) \
  ZO_NATIVE(void, name)(JNIEnv*, jobject, jlong handle) { verb(Long{handle}); }
#define ZO_RUN(name, verb) \
  ZO_NATIVE(void, name)(JNIEnv * env, jobject, jlong handle) { run(env, verb, handle); }
#define ZO_RUN_TEXT(name, verb) \
  ZO_NATIVE(void, name)(JNIEnv * env, jobject, jlong handle, jstring text) { run(env, verb, handle, text); }
#define ZO_RUN_TEXTS(name, verb)                                                              \
  ZO_NATIVE(void, name)(JNIEnv * env, jobject, jlong handle, jstring first, jstring second) { \
    run(env, verb, handle, first, second);                                                    \
  }

#endif  // ZOEXPORT_JNI_SUPPORT_H_
