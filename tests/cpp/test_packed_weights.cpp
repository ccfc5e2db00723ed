// Files of packed weights: made once, remade when they are not what was made, never in the way of a session.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engines/packed_weights.h"

using namespace zoexport;

namespace {

const std::string kContent(10000, 'w');

void put(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  CHECK(file.write(content.data(), static_cast<std::streamsize>(content.size())).good());
}

// A folder that is removed at the end, and how often its file was made.
struct Folder {
  char root[32] = "/tmp/zoexport-test-XXXXXX";
  int made = 0;
  Folder() { CHECK(::mkdtemp(root) != nullptr); }
  ~Folder() {
    for (const std::string& name : names()) {
      ::unlink(join(path(), name).c_str());
    }
    ::rmdir(path().c_str());
    ::rmdir(root);
  }
  std::string path() const { return join(root, "packed"); }
  std::string file(const std::string& name) const { return join(path(), name); }
  std::set<std::string> names() const {
    std::set<std::string> found;
    if (DIR* entries = ::opendir(path().c_str())) {
      while (const dirent* entry = ::readdir(entries)) {
        found.insert(entry->d_name);
      }
      ::closedir(entries);
    }
    found.erase(".");
    found.erase("..");
    return found;
  }
  Result<PackedWeights> open(const std::string& content = kContent, uint64_t room = 4096) {
    return PackedWeights::open(path(), "key", room, [&](const std::string& path) -> Status {
      ++made;
      put(path, content);
      return {};
    });
  }
  // Opens it and reads what a session would map.
  std::string content() {
    const auto found = open();
    CHECK(found.ok());
    return *read_file(found->path(), ZO_STATE_ERROR);
  }
};

const std::set<std::string> kBoth = {"key.lock", "key.packed"};

void test_made_once() {
  Folder folder;
  CHECK(folder.content() == kContent && folder.content() == kContent);
  CHECK(folder.made == 1 && folder.names() == kBoth);
  CHECK((*folder.open()).any());
}

void test_remade_when_damaged() {
  Folder folder;
  CHECK(folder.content() == kContent);
  const std::string path = folder.file("key.packed");
  int made = 1;
  for (const std::string& damaged : {kContent.substr(1), std::string(), "x" + kContent.substr(1)}) {
    put(path, damaged);
    CHECK(folder.content() == kContent && folder.made == ++made);
  }
  ::unlink(path.c_str());
  CHECK(folder.content() == kContent && folder.made == ++made);
  for (const char* record : {"", "zoexport-packed-1 ", "no record"}) {
    put(folder.file("key.lock"), record);
    CHECK(folder.content() == kContent && folder.made == ++made);
  }
  CHECK(folder.names() == kBoth);
}

// A file that was copied has other times and another number; its content tells that it is the same.
void test_copied_file_is_read() {
  Folder folder;
  CHECK(folder.content() == kContent);
  put(folder.file("copy"), kContent);
  CHECK(::rename(folder.file("copy").c_str(), folder.file("key.packed").c_str()) == 0);
  CHECK(folder.content() == kContent && folder.made == 1);
}

void test_failures_leave_nothing() {
  Folder folder;
  const auto refused = PackedWeights::open(folder.path(), "key", 1, [](const std::string& path) -> Status {
    put(path, "half");
    return Failure{ZO_ENGINE_ERROR, "here", "a problem", "", ""};
  });
  CHECK(!refused.ok() && refused.failure().found == "a problem");
  CHECK(folder.names() == std::set<std::string>{"key.lock"});
  const auto large = folder.open(kContent, uint64_t{1} << 60);
  CHECK(!large.ok() && large.failure().found == "too little free space" && folder.made == 0);
  struct rlimit before, limit;
  CHECK(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  limit = before;
  limit.rlim_cur = 100000;
  CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK(!folder.open(kContent, 100001).ok() && folder.made == 0);
  CHECK(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(folder.names() == std::set<std::string>{"key.lock"});
  CHECK(folder.content() == kContent);
  // A folder that cannot be made, for the superuser too.
  put(folder.file("file"), "");
  const auto below = PackedWeights::open(folder.file("file") + "/packed", "key", 1, [](const std::string&) {
    CHECK(false);
    return Status();
  });
  CHECK(!below.ok() && below.failure().where == folder.file("file") + "/packed");
}

void test_made_once_by_many() {
  Folder folder;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto found = folder.open();  // counts under the lock
      CHECK(found.ok() && *read_file(found->path(), ZO_STATE_ERROR) == kContent);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(folder.made == 1 && folder.names() == kBoth);
}

void test_unused_ones_are_pruned() {
  Folder folder;
  CHECK(folder.content() == kContent);
  const auto age = [&](const std::string& name, time_t days) {
    put(folder.file(name + ".packed"), "p");
    put(folder.file(name + ".lock"), "r");
    const timespec time{::time(nullptr) - days * 24 * 3600, 0};
    const timespec times[2] = {time, time};
    CHECK(::utimensat(AT_FDCWD, folder.file(name + ".lock").c_str(), times, 0) == 0);
  };
  age("new", 29);
  age("old", 31);
  age("used", 31);
  const int user = ::open(folder.file("used.lock").c_str(), O_RDONLY);
  CHECK(::flock(user, LOCK_EX) == 0);
  put(folder.file("key.packed"), "");  // pruning happens when one is made
  CHECK(folder.content() == kContent);
  ::close(user);
  CHECK(folder.names() ==
        (std::set<std::string>{"key.lock", "key.packed", "new.lock", "new.packed", "used.lock", "used.packed"}));
}

void test_library_lock_is_released() {
  Folder folder;
  const auto found = folder.open();
  const int library = ::open(found->path().c_str(), O_RDWR);
  CHECK(::flock(library, LOCK_EX | LOCK_NB) == 0);
  const int other = ::open(found->path().c_str(), O_RDONLY);
  CHECK(::flock(other, LOCK_SH | LOCK_NB) != 0);
  found->release_library_lock();
  CHECK(::flock(other, LOCK_SH | LOCK_NB) == 0);
  ::close(library);
  ::close(other);
}

void test_default_folder() {
  for (const char* name : {"ZOEXPORT_PACKED", "ZOEXPORT_CACHE", "XDG_CACHE_HOME", "HOME"}) {
    ::unsetenv(name);
  }
  CHECK(default_packed_folder().empty());
  ::setenv("HOME", "/h", 1);
  CHECK(default_packed_folder() == "/h/.cache/zoexport/packed");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  CHECK(default_packed_folder() == "/x/zoexport/packed");
  ::setenv("ZOEXPORT_CACHE", "~/z", 1);
  CHECK(default_packed_folder() == "/h/z/packed");
  ::setenv("ZOEXPORT_PACKED", "", 1);
  CHECK(default_packed_folder().empty());
}

void test_identity() {
  const std::string identity = packer_identity(reinterpret_cast<const void*>(&put));
  CHECK(!identity.empty() && identity == packer_identity(reinterpret_cast<const void*>(&put)));
  // The program and the C library are two files.
  CHECK(identity != packer_identity(reinterpret_cast<const void*>(&::getenv)));
}

}  // namespace

int main() {
  test_made_once();
  test_remade_when_damaged();
  test_copied_file_is_read();
  test_failures_leave_nothing();
  test_made_once_by_many();
  test_unused_ones_are_pruned();
  test_library_lock_is_released();
  test_default_folder();
  test_identity();
  return check::result();
}
