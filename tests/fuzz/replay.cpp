// Runs a fuzz target over kept inputs: files, and all files of folders.
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz.h"

namespace {

bool run(const std::string& path, size_t& inputs) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) {
    std::fprintf(stderr, "%s: no such file\n", path.c_str());
    return false;
  }
  if (!S_ISDIR(status.st_mode)) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::fprintf(stderr, "%s\n", path.c_str());  // before it runs: a crash has the last name
    (void)LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(content.data()), content.size());
    ++inputs;
    return true;
  }
  std::vector<std::string> names;
  DIR* folder = ::opendir(path.c_str());
  while (const dirent* entry = folder == nullptr ? nullptr : ::readdir(folder)) {
    if (entry->d_name[0] != '.') {
      names.push_back(path + "/" + entry->d_name);
    }
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) { return run(name, inputs); });
}

}  // namespace

int main(int count, char** arguments) {
  size_t inputs = 0;
  for (int i = 1; i < count; ++i) {
    if (!run(arguments[i], inputs)) {
      return 1;
    }
  }
  std::printf("%zu inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}
