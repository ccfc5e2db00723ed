#include "session/manifest/packed_bundle.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>

#include "session/manifest/manifest.h"
#include "session/storage/files.h"
#include "session/storage/sha256.h"
#include "session/storage/zip_reader.h"

namespace zoexport {
namespace {

constexpr char kManifest[] = "manifest.json";
constexpr char kSignature[] = "manifest.json.minisig";
constexpr uint64_t kLongest = uint64_t{100} << 20;  // of these two
constexpr size_t kPiece = size_t{1} << 20;
const char* const kAgain = "Pack it again, or copy it again.";

Failure damaged(const OpenFile& packed, const std::string& name, const std::string& found,
                const std::string& expected) {
  return {ZO_BUNDLE_ERROR, packed.path() + ", " + name, found, expected, kAgain};
}

// Copy an entry to `path`, and compute its SHA-256. `copied` gets the bytes of each piece and returns whether to go on.
Status copy(const OpenFile& packed, const ZipEntry& entry, const std::string& path, std::string& hash,
            const std::function<bool(uint64_t bytes)>& copied) {
  const auto piece = std::make_unique<uint8_t[]>(kPiece);
  Sha256 sum;
  bool read_failed = false, cancelled = false;
  Status written = write_file(path, [&](int descriptor) {
    for (uint64_t done = 0; done < entry.bytes;) {
      const auto size = static_cast<size_t>(std::min<uint64_t>(kPiece, entry.bytes - done));
      if (packed.read_at(piece.get(), size, entry.offset + done) != static_cast<ssize_t>(size)) {
        read_failed = true;
        return false;
      }
      sum.update(piece.get(), size);
      if (!write_all(descriptor, piece.get(), size)) {
        return false;
      }
      done += size;
      if (!copied(size)) {
        cancelled = true;
        return false;
      }
    }
    return true;
  });
  if (cancelled) {
    return Failure{ZO_CANCELLED, packed.path(), "a wish to stop", "the whole bundle", "Unpack it again."};
  }
  if (read_failed) {
    return Failure{ZO_BUNDLE_ERROR, packed.path(), "a file that is cut short", "the whole bundle", kAgain};
  }
  hash = to_hex(sum.finish());
  return written;
}

Status check_room(const std::string& folder, uint64_t needed) {
  struct statvfs status;
  if (::statvfs(folder.c_str(), &status) != 0) {
    return system_failure(ZO_STATE_ERROR, folder, errno, false);
  }
  const uint64_t room = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  if (room >= needed) {
    return {};
  }
  return Failure{ZO_STATE_ERROR, folder, std::to_string(room / 1000000) + " MB free",
                 "at least " + std::to_string(needed / 1000000 + 1) + " MB for the bundle", "Free some space."};
}

// Check that the archive has exactly the files of the manifest, with their sizes; return their total bytes.
Result<uint64_t> check_entries(const OpenFile& packed, const std::map<std::string, ZipEntry>& entries,
                               const Manifest& manifest) {
  uint64_t total = 0;
  for (const auto& [name, expected] : manifest.files) {
    const auto found = entries.find(name);
    const std::string size = std::to_string(expected.bytes) + " bytes";
    if (found == entries.end()) {
      return damaged(packed, name, "no such file", "a file of " + size);
    }
    if (found->second.bytes != expected.bytes) {
      return damaged(packed, name, std::to_string(found->second.bytes) + " bytes", size);
    }
    total += expected.bytes;  // within the archive, so it does not wrap
  }
  for (const auto& [name, entry] : entries) {
    if (name != kManifest && name != kSignature && manifest.files.count(name) == 0) {
      return damaged(packed, name, "a file that the manifest does not list", "those that it lists");
    }
  }
  return total;
}

Status unpack_into(const OpenFile& packed, const std::string& folder, const UnpackOptions& options) {
  ZO_ASSIGN(entries, read_zip(packed));
  if (entries.count(kManifest) == 0) {
    return damaged(packed, kManifest, "no such file", "a bundle's manifest");
  }
  std::string hash;
  for (const char* name : {kManifest, kSignature}) {
    const auto found = entries.find(name);
    if (found == entries.end()) {
      continue;
    }
    if (found->second.bytes > kLongest) {
      return damaged(packed, name, std::to_string(found->second.bytes) + " bytes",
                     "at most " + std::to_string(kLongest));
    }
    ZO_TRY(copy(packed, found->second, join(folder, name), hash, [](uint64_t) { return true; }));
  }
  ZO_ASSIGN(opened, open_bundle(folder));
  ZO_ASSIGN(manifest, read_manifest(opened, options.trusted));
  ZO_ASSIGN(total, check_entries(packed, entries, manifest));
  ZO_TRY(check_room(folder, total));
  uint64_t done = 0;
  for (const auto& [name, expected] : manifest.files) {
    if (const size_t slash = name.rfind('/'); slash != std::string::npos) {
      ZO_TRY(make_folder(join(folder, name.substr(0, slash))));
    }
    ZO_TRY(copy(packed, entries.at(name), join(folder, name), hash, [&](uint64_t bytes) {
      done += bytes;
      return !options.go_on || options.go_on(done, total);
    }));
    if (hash != expected.sha256) {
      return damaged(packed, name, "altered content (SHA-256 " + hash.substr(0, 16) + "...)",
                     "SHA-256 " + expected.sha256.substr(0, 16) + "...");
    }
  }
  return {};
}

}  // namespace

Status unpack_bundle(const std::string& file, const std::string& folder, const UnpackOptions& options) {
  if (exists(folder) && !options.replace) {
    return Failure{ZO_INVALID_ARGUMENT, folder, "something that is there", "a new folder",
                   "Choose another one, or let it be replaced."};
  }
  ZO_ASSIGN(packed, OpenFile::open(file, ZO_BUNDLE_ERROR));
  // Hidden from who lists bundles.
  const std::string hidden = join(folder_of(folder), "." + folder.substr(folder.find_last_of('/') + 1));
  const std::string partial = hidden + ".unpacking", before = hidden + ".before";
  std::error_code ignored;
  std::filesystem::remove_all(partial, ignored);  // of a process that was ended
  ZO_TRY(make_folder(partial));
  Status status = unpack_into(packed, partial, options);
  if (!status.ok() && status.failure().code == ZO_BUNDLE_ERROR) {
    // What is wrong with a file of the folder, which goes, is wrong with the archive's.
    Failure failure = status.failure();
    if (failure.where.compare(0, partial.size() + 1, partial + "/") == 0) {
      failure.where = packed.path() + ", " + failure.where.substr(partial.size() + 1);
    }
    status = failure;
  }
  if (status.ok() && exists(folder)) {
    std::filesystem::remove_all(before, ignored);
    status = rename_file(folder, before);
  }
  status = status.ok() ? rename_file(partial, folder) : status;
  std::filesystem::remove_all(status.ok() ? before : partial, ignored);
  return status;
}

}  // namespace zoexport
