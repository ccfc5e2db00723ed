// What is synced, and what a sync that fails means: fsync and fdatasync of this program stand before those of the system.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "session/storage/files.h"
#include "session/storage/trajectory.h"

namespace {

std::vector<std::string> synced;  // paths, in order
std::string failing;              // the path that cannot be synced
int reason = EIO;

int sync_of(int descriptor, long call) {
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  if (::readlink(link.c_str(), path, sizeof(path) - 1) > 0) {
    synced.emplace_back(path);
  }
  if (!failing.empty() && failing == path) {
    errno = reason;
    return -1;
  }
  return static_cast<int>(::syscall(call, descriptor));
}

}  // namespace

extern "C" int fsync(int descriptor) { return sync_of(descriptor, SYS_fsync); }
extern "C" int fdatasync(int descriptor) { return sync_of(descriptor, SYS_fdatasync); }

using namespace zoexport;

namespace {

struct Folder {
  Folder() { path = ::mkdtemp(name); }
  ~Folder() {
    failing.clear();
    (void)std::system(("rm -r " + path).c_str());
  }
  std::string file(const std::string& file) const { return join(path, file); }
  char name[32] = "/tmp/zoexport-sync-XXXXXX";
  std::string path;
};

Status put(const std::string& path, const std::string& content) {
  return write_file(path, [&](int descriptor) { return write_all(descriptor, content.data(), content.size()); });
}

bool was_synced(const std::string& path) { return std::find(synced.begin(), synced.end(), path) != synced.end(); }

void test_new_folders() {
  const Folder folder;
  synced.clear();
  std::vector<std::string> made;
  CHECK(make_folder(folder.file("a/b/c"), &made).ok());
  CHECK((made == std::vector<std::string>{folder.file("a"), folder.file("a/b"), folder.file("a/b/c")}));
  CHECK((synced == std::vector<std::string>{folder.path, folder.file("a"), folder.file("a/b")}));
  synced.clear();
  made.clear();
  CHECK(make_folder(folder.file("a/b/c"), &made).ok() && synced.empty() && made.empty());
  failing = folder.file("a");
  CHECK(!make_folder(folder.file("a/d/e"), &made).ok());
  CHECK((made == std::vector<std::string>{folder.file("a/d")}));
}

void test_written_files() {
  const Folder folder;
  const std::string path = folder.file("x");
  synced.clear();
  CHECK(put(path, "old").ok());
  CHECK((synced == std::vector<std::string>{temporary_name(path), folder.path}));
  failing = temporary_name(path);
  CHECK(!put(path, "new").ok());
  CHECK(*read_file(path, ZO_STATE_ERROR) == "old" && !exists(temporary_name(path)));
  // The name itself may not be on the disk: no success.
  failing = folder.path;
  const Status unnamed = put(path, "new");
  CHECK(!unnamed.ok() && unnamed.failure().where == folder.path);
  CHECK(!exists(temporary_name(path)));
  reason = EINVAL;  // a file system without syncs of folders
  CHECK(put(path, "newer").ok());
  reason = EIO;
}

void test_the_log() {
  const Folder folder;
  const std::string path = folder.file("log");
  const std::string header = encode_header({std::string(64, 'a'), 7, 1});
  CHECK(put(path, header).ok());
  auto log = LogFile::open(path, *parse_log(header, path));
  if (!CHECK(log.ok())) {
    return;
  }
  CHECK(log->append({0, 1, 1, 1, {1}}).ok() && log->sync().ok() && was_synced(path));
  CHECK(log->append({1, 1, 1, 1, {1}}).ok());
  const std::string before = *read_file(path, ZO_STATE_ERROR);
  failing = path;
  CHECK(!log->sync().ok());
  // The system calls what it dropped written: that a later sync succeeds says nothing.
  failing.clear();
  const Status again = log->sync();
  CHECK(!again.ok() && again.failure().fix.find("open the state again") != std::string::npos);
  CHECK(!log->append({2, 1, 1, 1, {1}}).ok() && !log->cut(0).ok());
  CHECK(*read_file(path, ZO_STATE_ERROR) == before);
  auto reopened = LogFile::open(path, *parse_log(before, path));
  CHECK(reopened.ok() && reopened->append({2, 1, 1, 1, {1}}).ok() && reopened->sync().ok());
}

}  // namespace

int main() {
  test_new_folders();
  test_written_files();
  test_the_log();
  return check::result();
}
