// Output to a path that a host chose: a file or a folder, written completely or not at all.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "session/result.h"

namespace zoexport {

// A file that is written from front to back.
class OutputFile {
 public:
  OutputFile(int descriptor, const std::string& path) : descriptor_(descriptor), path_(path) {}
  Status write(const void* data, size_t size);

 private:
  int descriptor_;
  const std::string& path_;  // of the output, for messages
};

// Everything is written to a new folder next to the path, synced, and renamed: existing files stay untouched, and the
// rest of that folder is removed.
class Output {
 public:
  // Refuses a path that exists, unless it may be replaced. Folders above it are made.
  static Result<Output> at(std::string path, bool replace);
  Output(Output&& other) noexcept;
  Output& operator=(Output&&) = delete;
  ~Output();

  // Writes a file of the output; `content` gives its bytes.
  Status write(const std::string& name, const std::function<Status(OutputFile& file)>& content);
  // Gives the path to the folder of what was written, or to the file of this name alone.
  Status become_folder();
  Status become_file(const std::string& name);

 private:
  Output(std::string path, std::string folder) : path_(std::move(path)), folder_(std::move(folder)) {}
  std::string path_;
  std::string folder_;  // empty once it has become the output
};

}  // namespace zoexport
