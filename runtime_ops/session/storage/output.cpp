#include "session/storage/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "session/storage/files.h"

namespace zoexport {
namespace {

const char* const kInside = "before";  // what a replaced output is called in its folder

Failure cannot_write(const std::string& path, const std::string& reason) {
  return {ZO_INVALID_ARGUMENT, "output " + path, reason, "a place that can be written, with room for the files",
          "Choose another path, or free space there. Nothing was written."};
}

// In the words of what a step to the output failed with.
Status as_output(const std::string& path, const Status& step) {
  return step.ok() ? Status() : Status(cannot_write(path, step.failure().found));
}

// Create an unused folder next to `path`; empty with errno set on failure.
std::string folder_beside(const std::string& path) {
  std::string folder = join(folder_of(path), "." + path.substr(path.find_last_of('/') + 1) + ".XXXXXX");
  return ::mkdtemp(folder.data()) == nullptr ? std::string() : folder;
}

void remove_all(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace

Status OutputFile::write(const void* data, size_t size) {
  return write_all(descriptor_, data, size) ? Status() : Status(cannot_write(path_, std::strerror(errno)));
}

Result<Output> Output::at(std::string path, bool replace) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  if (!replace && exists(path)) {
    return Failure{ZO_INVALID_ARGUMENT, "output " + path, "something that is already there",
                   "a path that does not exist yet", "Choose another path, or replace it (--force)."};
  }
  ZO_TRY(as_output(path, make_folder(folder_of(path))));
  std::string folder = folder_beside(path);
  if (folder.empty()) {
    return cannot_write(path, std::strerror(errno));
  }
  return Output(std::move(path), std::move(folder));
}

Output::Output(Output&& other) noexcept
    : path_(std::move(other.path_)), folder_(std::exchange(other.folder_, std::string())) {}

Output::~Output() {
  if (!folder_.empty()) {
    remove_all(folder_);
  }
}

Status Output::write(const std::string& name, const std::function<Status(OutputFile&)>& content) {
  Status written;
  const Status whole = write_file(join(folder_, name), [&](int descriptor) {
    OutputFile file(descriptor, path_);
    written = content(file);
    // Data from a mapping that has lost its file must not become an output.
    written = written.ok() ? Faults::current()->check() : written;
    return written.ok();
  });
  ZO_TRY(written);
  return as_output(path_, whole);
}

Status Output::become_folder() {
  std::string retired;
  if (exists(path_)) {
    retired = folder_beside(path_);
    if (retired.empty() || ::rename(path_.c_str(), join(retired, kInside).c_str()) != 0) {
      const int error = errno;
      ::rmdir(retired.c_str());
      return cannot_write(path_, std::strerror(error));
    }
  }
  if (::chmod(folder_.c_str(), 0755) != 0 || ::rename(folder_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    if (!retired.empty() && ::rename(join(retired, kInside).c_str(), path_.c_str()) == 0) {
      ::rmdir(retired.c_str());
    }
    return cannot_write(path_, std::strerror(error));
  }
  folder_.clear();
  if (!retired.empty()) {
    remove_all(retired);
  }
  return as_output(path_, sync_folder(folder_of(path_)));
}

Status Output::become_file(const std::string& name) {
  return as_output(path_, rename_file(join(folder_, name), path_));
}

}  // namespace zoexport
