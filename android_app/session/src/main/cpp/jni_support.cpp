#include "jni_support.h"

#include <utility>

namespace zoexport::jni {
namespace {

// An array of the VM holds at most 2^31 - 1 elements.
jsize length(size_t count) {
  if (count > INT32_MAX) {
    throw std::bad_alloc();
  }
  return static_cast<jsize>(count);
}

template <typename T>
std::vector<T> room(JNIEnv* env, jarray array) {
  const auto count = static_cast<size_t>(env->GetArrayLength(array));
  std::vector<T> values;
  values.reserve(count + 1);
  values.resize(count);
  return values;
}

}  // namespace

jobject to_exception(JNIEnv* env, const zo_error& error) {
  jclass type = checked(env, env->FindClass("zoexport/session/ZoException"));
  jmethodID of =
      checked(env, env->GetStaticMethodID(type, "of",
                                          "(ILjava/lang/String;Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;)"
                                          "Lzoexport/session/ZoException;"));
  return checked(env, env->CallStaticObjectMethod(type, of, static_cast<jint>(error.code), to_string(env, error.where),
                                                  to_string(env, error.found), to_string(env, error.expected),
                                                  to_string(env, error.fix)));
}

void raise(JNIEnv* env, const zo_error& error) {
  env->Throw(static_cast<jthrowable>(to_exception(env, error)));
  throw Pending{};
}

Listener::Listener(JNIEnv* env, jobject object, const char* type, const char* method, const char* signature)
    : env_(env), object_(object), method_(nullptr) {
  if (object != nullptr) {
    jclass found = checked(env, env->FindClass((std::string("zoexport/session/") + type).c_str()));
    method_ = checked(env, env->GetMethodID(found, method, signature));
  }
}

std::string to_utf8(JNIEnv* env, jstring text) {
  const Frame frame(env);
  jclass type = checked(env, env->FindClass("java/lang/String"));
  jmethodID get = checked(env, env->GetMethodID(type, "getBytes", "(Ljava/lang/String;)[B"));
  jstring charset = checked(env, env->NewStringUTF("UTF-8"));
  auto bytes = static_cast<jbyteArray>(checked(env, env->CallObjectMethod(text, get, charset)));
  std::string result(static_cast<size_t>(env->GetArrayLength(bytes)), '\0');
  env->GetByteArrayRegion(bytes, 0, static_cast<jsize>(result.size()), reinterpret_cast<jbyte*>(result.data()));
  return checked(env, result);
}

jstring to_string(JNIEnv* env, const char* utf8) { return to_string(env, utf8, std::char_traits<char>::length(utf8)); }

jstring to_string(JNIEnv* env, const char* utf8, size_t size) {
  jbyteArray bytes = checked(env, env->NewByteArray(length(size)));
  env->SetByteArrayRegion(bytes, 0, static_cast<jsize>(size), reinterpret_cast<const jbyte*>(utf8));
  jclass type = checked(env, env->FindClass("java/lang/String"));
  jmethodID constructor = checked(env, env->GetMethodID(type, "<init>", "([BLjava/lang/String;)V"));
  jstring charset = checked(env, env->NewStringUTF("UTF-8"));
  return static_cast<jstring>(checked(env, env->NewObject(type, constructor, bytes, charset)));
}

std::vector<std::string> to_texts(JNIEnv* env, jobjectArray array) {
  std::vector<std::string> texts;
  for (jsize i = 0; i < env->GetArrayLength(array); ++i) {
    auto text = static_cast<jstring>(checked(env, env->GetObjectArrayElement(array, i)));
    texts.push_back(to_utf8(env, text));
    env->DeleteLocalRef(text);
  }
  return texts;
}

std::vector<int64_t> to_vector(JNIEnv* env, jlongArray array) {
  std::vector<int64_t> values = room<int64_t>(env, array);
  static_assert(sizeof(jlong) == sizeof(int64_t));
  env->GetLongArrayRegion(array, 0, static_cast<jsize>(values.size()), reinterpret_cast<jlong*>(values.data()));
  return checked(env, std::move(values));
}

std::vector<float> to_vector(JNIEnv* env, jfloatArray array) {
  std::vector<float> values = room<float>(env, array);
  env->GetFloatArrayRegion(array, 0, static_cast<jsize>(values.size()), values.data());
  return checked(env, std::move(values));
}

std::vector<uint8_t> to_vector(JNIEnv* env, jbyteArray array) {
  std::vector<uint8_t> values = room<uint8_t>(env, array);
  env->GetByteArrayRegion(array, 0, static_cast<jsize>(values.size()), reinterpret_cast<jbyte*>(values.data()));
  return checked(env, std::move(values));
}

jlongArray to_array(JNIEnv* env, const int64_t* values, size_t count) {
  jlongArray array = checked(env, env->NewLongArray(length(count)));
  env->SetLongArrayRegion(array, 0, static_cast<jsize>(count), reinterpret_cast<const jlong*>(values));
  return array;
}

jintArray to_array(JNIEnv* env, const uint32_t* values, size_t count) {
  jintArray array = checked(env, env->NewIntArray(length(count)));
  env->SetIntArrayRegion(array, 0, static_cast<jsize>(count), reinterpret_cast<const jint*>(values));
  return array;
}

jbyteArray to_array(JNIEnv* env, const uint8_t* values, size_t count) {
  jbyteArray array = checked(env, env->NewByteArray(length(count)));
  env->SetByteArrayRegion(array, 0, static_cast<jsize>(count), reinterpret_cast<const jbyte*>(values));
  return array;
}

jfloatArray to_array(JNIEnv* env, const float* values, size_t count) {
  jfloatArray array = checked(env, env->NewFloatArray(length(count)));
  env->SetFloatArrayRegion(array, 0, static_cast<jsize>(count), values);
  return array;
}

jdoubleArray to_array(JNIEnv* env, const double* values, size_t count) {
  jdoubleArray array = checked(env, env->NewDoubleArray(length(count)));
  env->SetDoubleArrayRegion(array, 0, static_cast<jsize>(count), values);
  return array;
}

}  // namespace zoexport::jni
