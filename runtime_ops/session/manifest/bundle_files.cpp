#include "session/manifest/bundle_files.h"

#include <set>

#include "session/storage/files.h"

namespace zoexport {
namespace {

const char* const kAgain = "Copy the bundle again from where it was compiled, or compile it again.";

}  // namespace

Status BundleFiles::check_sizes() const {
  for (const auto& [name, expected] : manifest_.files) {
    ZO_TRY(sized(name, expected));
  }
  return {};
}

Status BundleFiles::check_hosts(bool programs) const {
  std::set<std::string> names(manifest_.tokenizer.begin(), manifest_.tokenizer.end());
  for (const ProgramSpec& program : manifest_.programs) {
    // A package is a folder: all files in it are the program.
    const std::string inside = program.file + "/";
    for (auto file = manifest_.files.lower_bound(program.file); programs && file != manifest_.files.end(); ++file) {
      if (file->first == program.file || file->first.compare(0, inside.size(), inside) == 0) {
        names.insert(file->first);
      }
    }
  }
  for (const std::string& name : names) {
    ZO_TRY(open(name));
  }
  return {};
}

Status BundleFiles::check(const std::string& name) const {
  if (checked_.count(name) == 0) {
    ZO_ASSIGN(file, open(name));
    checked_.emplace(name, std::move(file));
  }
  return {};
}

Result<OpenFile> BundleFiles::open(const std::string& name) const {
  if (const auto found = checked_.find(name); found != checked_.end()) {
    OpenFile file = std::move(found->second);
    checked_.erase(found);
    return file;
  }
  const auto entry = manifest_.files.find(name);
  if (entry == manifest_.files.end()) {
    return Failure{ZO_BUNDLE_ERROR, join(path(), name), "no entry in the manifest's files", "one", kAgain};
  }
  const FileSpec& expected = entry->second;
  ZO_ASSIGN(file, sized(name, expected));
  if (!skip_hashes_) {
    ZO_ASSIGN(hash, file.hash());
    if (hash != expected.sha256) {
      return Failure{ZO_BUNDLE_ERROR, file.path(), "altered content (SHA-256 " + hash.substr(0, 16) + "...)",
                     "SHA-256 " + expected.sha256.substr(0, 16) + "...", kAgain};
    }
  }
  return file;
}

Result<OpenFile> BundleFiles::sized(const std::string& name, const FileSpec& expected) const {
  const std::string bytes = std::to_string(expected.bytes) + " bytes";
  if (!folder_.has(name)) {
    return Failure{ZO_BUNDLE_ERROR, join(path(), name), "no such file", "a file of " + bytes, kAgain};
  }
  ZO_ASSIGN(file, folder_.file(name));
  if (file.size() != expected.bytes) {
    return Failure{ZO_BUNDLE_ERROR, file.path(),
                   std::to_string(file.size()) + " bytes" + (file.size() < expected.bytes ? " (truncated)" : ""), bytes,
                   kAgain};
  }
  return file;
}

}  // namespace zoexport
