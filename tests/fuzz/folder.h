// A folder in memory for targets that read folders, and the programs of their bundles, which run in this process.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "fuzz.h"
#include "zoexport/session.h"

namespace fuzz {

class Folder {
 public:
  explicit Folder(const char* name) : path_("/dev/shm/zoexport-fuzz-" + std::to_string(::getpid()) + "-" + name) {
    MUST(::mkdir(path_.c_str(), 0700) == 0);
  }
  ~Folder() {
    clear();
    ::rmdir(path_.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  // Removes what is in it, folders of states among it.
  void clear() const {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      std::filesystem::remove_all(entry.path());
    }
  }

  void write(const std::string& name, const std::string& content) const {
    const int descriptor = ::open(file(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    MUST(descriptor >= 0 &&
         ::write(descriptor, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
    ::close(descriptor);
  }

 private:
  std::string path_;
};

// Outputs that have an input's name are that input; the others are the same numbers for every call.
inline int32_t run_program(void*, const char*, const zo_tensor* inputs, size_t input_count, const zo_tensor* outputs,
                           size_t output_count, char*, size_t) {
  for (size_t i = 0; i < output_count; ++i) {
    if (outputs[i].data == nullptr) {
      continue;
    }
    const zo_tensor* same = std::find_if(inputs, inputs + input_count, [&](const zo_tensor& input) {
      return std::strcmp(input.name, outputs[i].name) == 0 && input.bytes == outputs[i].bytes;
    });
    if (same != inputs + input_count) {
      std::memcpy(outputs[i].data, same->data, outputs[i].bytes);
    } else {
      std::fill_n(static_cast<float*>(outputs[i].data), outputs[i].bytes / sizeof(float), -1.5f);
    }
  }
  return 0;
}

// A bundle of tests/fuzz/bundles, whose programs are the one above.
inline zo_session* open_bundle(const char* name) {
  static const zo_engine engine{nullptr, run_program};
  zo_session* session = nullptr;
  zo_error error;
  const std::string path = std::string(ZOEXPORT_SOURCE_DIR "/tests/fuzz/bundles/") + name;
  if (zo_session_open(path.c_str(), R"({"cache": ""})", &engine, &session, &error) != ZO_OK) {
    std::fprintf(stderr, "%s: %s\n", error.where, error.found);
    std::abort();
  }
  return session;
}

// A JSON result, freed; null after a failure.
inline nlohmann::json taken(char* text) {
  nlohmann::json found = text == nullptr ? nlohmann::json() : nlohmann::json::parse(text);
  zo_free(text);
  return found;
}

// Checks that a failure has all four parts.
inline void check(zo_status status, const zo_error& error) {
  const bool told = status == ZO_OK ? error.code == ZO_OK
                                    : error.code == status && error.where[0] != '\0' && error.found[0] != '\0' &&
                                          error.expected[0] != '\0' && error.fix[0] != '\0';
  if (!told || status < ZO_OK || status >= ZO_INTERNAL_ERROR) {
    std::fprintf(stderr, "status %d: where '%s', found '%s', expected '%s', fix '%s'\n", status, error.where,
                 error.found, error.expected, error.fix);
    MUST(false);
  }
}

}  // namespace fuzz
