// The files of a bundle: none is used that its manifest does not list as it is.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "session/manifest/manifest.h"
#include "session/result.h"
#include "session/storage/open_file.h"

namespace zoexport {

class BundleFiles {
 public:
  // The manifest outlives this object. `skip_hashes`: sizes are compared only.
  BundleFiles(Folder folder, const Manifest& manifest, bool skip_hashes)
      : folder_(std::move(folder)), manifest_(manifest), skip_hashes_(skip_hashes) {}

  const std::string& path() const { return folder_.path(); }

  // Check that all files exist with the manifest's sizes. This is quick; `open` checks again, so a file that is altered
  // in between is detected.
  Status check_sizes() const;

  // Hashes what hosts read by themselves: the tokenizer and, where the host's engine runs them, the programs.
  Status check_hosts(bool programs) const;

  // Check that a file has the manifest's size and SHA-256; it stays open until it is used.
  Status check(const std::string& name) const;

  // A file with the manifest's size and SHA-256. Whoever uses it reads or maps what this opened.
  Result<OpenFile> open(const std::string& name) const;

 private:
  Result<OpenFile> sized(const std::string& name, const FileSpec& expected) const;

  Folder folder_;
  const Manifest& manifest_;
  bool skip_hashes_;
  mutable std::map<std::string, OpenFile> checked_;  // that nobody has used yet
};

}  // namespace zoexport
