// Mapped files that lose their pages, files that are opened without following links, and signatures.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "session/manifest/signature.h"
#include "session/storage/faults.h"
#include "session/storage/files.h"
#include "session/storage/open_file.h"
#include "session/storage/safetensors.h"
#include "session/storage/shared_file.h"

using namespace zoexport;

namespace {

constexpr size_t kBytes = size_t{1} << 20;

struct Temporary {
  Temporary() { path = ::mkdtemp(name); }
  ~Temporary() { (void)std::system(("rm -r " + path).c_str()); }
  std::string file(const std::string& file) const { return join(path, file); }
  char name[32] = "/tmp/zoexport-fault-XXXXXX";
  std::string path;
};

void write(const std::string& path, const std::string& content) {
  CHECK(write_file(path, [&](int descriptor) { return write_all(descriptor, content.data(), content.size()); }).ok());
}

size_t sum(const uint8_t* data, size_t size) {
  size_t total = 0;
  for (size_t i = 0; i < size; ++i) {
    total += data[i];
  }
  return total;
}

void test_a_file_that_is_cut_short_while_it_is_read() {
  const Temporary folder;
  write(folder.file("a"), std::string(kBytes, '\1'));
  const auto mine = std::make_shared<Faults>();
  const auto another = std::make_shared<Faults>();
  const Faults::Scope scope(mine);
  const auto file = OpenFile::open(folder.file("a"), ZO_BUNDLE_ERROR);
  const auto mapped = MappedFile::of(*file, 5000, kBytes - 5000);
  CHECK(mapped.ok() && sum(mapped->data(), mapped->size()) == kBytes - 5000 && mine->check().ok());
  CHECK(::truncate(folder.file("a").c_str(), 8192) == 0);
  // On another thread, as programs read.
  std::atomic<size_t> total{0};
  std::thread([&] { total = sum(mapped->data(), mapped->size()); }).join();
  CHECK(total == 8192 - 5000);
  const Status status = mine->check();
  CHECK(!status.ok() && status.failure().where == folder.file("a") && status.failure().code == ZO_BUNDLE_ERROR);
  CHECK(another->check().ok());
}

void test_the_failure_outlives_the_mapping() {
  const Temporary folder;
  write(folder.file("a"), std::string(kBytes, '\1'));
  const auto mine = std::make_shared<Faults>();
  const Faults::Scope scope(mine);
  {
    const auto file = OpenFile::open(folder.file("a"), ZO_STATE_ERROR);
    const auto mapped = MappedFile::of(*file);
    CHECK(::truncate(folder.file("a").c_str(), 0) == 0);
    CHECK(sum(mapped->data(), mapped->size()) == 0);
  }
  CHECK(!mine->check().ok() && mine->check().failure().where == folder.file("a"));
}

// What was written from a mapping that lost its file takes no good file's place.
void test_no_file_is_replaced_from_lost_values() {
  const Temporary folder;
  write(folder.file("snapshot"), "good");
  const Faults::Scope scope(std::make_shared<Faults>());
  auto work = SharedFile::create(folder.file("work"), kBytes);
  std::memset(work->data(), 1, kBytes);
  CHECK(::truncate(folder.file("work").c_str(), 0) == 0);
  const Status written =
      write_safetensors(folder.file("snapshot"), {{"w", ZO_UINT8, {int64_t{kBytes}}, work->data(), kBytes}}, {});
  CHECK(!written.ok() && *read_file(folder.file("snapshot"), ZO_STATE_ERROR) == "good");
  CHECK(!exists(folder.file("snapshot.tmp")));
}

// Room that was given back and is written before it was taken again, as file systems do that write elsewhere than they
// reserved: with the disk full by then.
void test_a_full_disk_under_a_mapping() {
  const Temporary folder;
  if (::mount("none", folder.path.c_str(), "tmpfs", 0, "size=1m") != 0) {
    std::printf("note: no file system can be mounted here, so none was filled\n");
    return;
  }
  {
    const auto mine = std::make_shared<Faults>();
    const Faults::Scope scope(mine);
    constexpr size_t kHalf = kBytes / 2;
    auto scratch = SharedFile::unnamed(folder.path, kHalf);
    CHECK(scratch.ok());
    std::memset(scratch->data(), 3, kHalf);
    CHECK(scratch->release(0, kHalf / 2));
    const int other = ::open(folder.file("other").c_str(), O_WRONLY | O_CREAT, 0600);
    const std::string page(4096, 'x');
    while (write_all(other, page.data(), page.size())) {
    }
    ::close(other);
    CHECK(!scratch->reserve(kHalf).ok() && mine->check().ok());
    std::memset(scratch->data(), 4, kHalf / 2);
    CHECK(!mine->check().ok() && mine->check().failure().code == ZO_STATE_ERROR);
  }
  CHECK(::umount(folder.path.c_str()) == 0);
}

// The signal that ended a child, whose memory is its own.
int ended_by(void (*body)(const std::string& folder)) {
  const Temporary folder;
  const pid_t child = ::fork();
  if (child == 0) {
    body(folder.path);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

void fault_elsewhere(const std::string& folder) {
  write(join(folder, "a"), std::string(kBytes, '\1'));
  const auto file = OpenFile::open(join(folder, "a"), ZO_BUNDLE_ERROR);
  const auto guarded = MappedFile::of(*file);
  void* own = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, file->descriptor(), 0);
  CHECK(::truncate(join(folder, "a").c_str(), 0) == 0);
  (void)sum(guarded->data(), 1);
  ::_exit(static_cast<int>(sum(static_cast<const uint8_t*>(own), kBytes)) + 9);
}

void test_other_faults_stay_what_they_were() {
  CHECK(ended_by(fault_elsewhere) == SIGBUS);
  CHECK(ended_by([](const std::string& folder) {
          write(join(folder, "a"), "x");
          const auto file = OpenFile::open(join(folder, "a"), ZO_BUNDLE_ERROR);
          const auto mapped = MappedFile::of(*file);
          ::raise(SIGBUS);
        }) == SIGBUS);
}

void test_names_lead_nowhere_else() {
  const Temporary outside;
  const Temporary inside;
  write(outside.file("secret"), "secret");
  CHECK(::mkdir(inside.file("sub").c_str(), 0700) == 0);
  write(inside.file("a"), "one");
  write(inside.file("sub/b"), "two");
  CHECK(::symlink(outside.file("secret").c_str(), inside.file("link").c_str()) == 0);
  CHECK(::symlink(outside.path.c_str(), inside.file("door").c_str()) == 0);
  CHECK(::symlink("a", inside.file("alias").c_str()) == 0);
  CHECK(::mkfifo(inside.file("pipe").c_str(), 0600) == 0);
  const auto folder = Folder::open(inside.path, ZO_BUNDLE_ERROR);
  CHECK(*folder->file("a")->read() == "one" && *folder->file("sub/b")->read() == "two");
  const auto refused = [&](const std::string& name, const std::string& found) {
    const auto file = folder->file(name);
    return !file.ok() && file.failure().found == found && file.failure().code == ZO_BUNDLE_ERROR;
  };
  for (const char* name : {"link", "alias", "door/secret"}) {
    CHECK(refused(name, "a link"));
  }
  const std::string above = "../" + outside.path.substr(5) + "/secret";
  for (const std::string& name : {std::string("../a"), above, std::string("sub/../a"), outside.file("secret"),
                                  std::string(""), std::string("sub//b"), std::string("./a"), std::string("a\0b", 3)}) {
    CHECK(refused(name, "a name that leads elsewhere"));
  }
  CHECK(refused("sub", "something that is not a file") && refused("pipe", "something that is not a file"));
  CHECK(!folder->file("none").ok() && !folder->file("a/b").ok());
  // The folder is the one that was opened, whatever has its name.
  CHECK(::rename(inside.path.c_str(), outside.file("moved").c_str()) == 0);
  CHECK(::mkdir(inside.path.c_str(), 0700) == 0);
  write(inside.file("a"), "another");
  CHECK(*folder->file("a")->read() == "one");
}

void test_one_descriptor_is_one_file() {
  const Temporary folder;
  write(folder.file("a"), "one");
  const auto file = OpenFile::open(folder.file("a"), ZO_BUNDLE_ERROR);
  write(folder.file("a"), "another");  // renamed into its place
  const auto mapped = MappedFile::of(*file);
  CHECK(file->size() == 3 && *file->read() == "one" && std::memcmp(mapped->data(), "one", 3) == 0);
  CHECK(*file->hash() == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
}

void test_writes_to_a_copy_stay_in_the_process() {
  const Temporary folder;
  write(folder.file("a"), std::string(kBytes, '\1'));
  const auto file = OpenFile::open(folder.file("a"), ZO_BUNDLE_ERROR);
  const auto mapped = MappedFile::of(*file, 5000, kBytes - 5000, MappedFile::Writes::kPrivateCopy);
  std::memset(const_cast<uint8_t*>(mapped->data()), 2, mapped->size());
  CHECK(sum(mapped->data(), mapped->size()) == 2 * (kBytes - 5000));
  CHECK(*file->read() == std::string(kBytes, '\1'));
}

// A key of the minisign tool, and what it signed with it.
void test_a_signature_of_the_tool() {
  const Temporary place;
  const std::string key = "RWRx01P7VZGYLwvOxthB25pF/EzQdEZjPJiEtZAiiD/994iqqvaw1r9Q";
  const std::string content = "{\"schema_version\": 1}\n";
  const std::string signature =
      "untrusted comment: signature from minisign secret key\n"
      "RURx01P7VZGYL3qMf4PNhN7umvcPEgtxxGq0nnw7d2xpNspR677tGf06egEIfGqx8g8SqGWh1OkS7uwe7xNT+UvQ67W8c9ZAIgA=\n"
      "trusted comment: of a test\n"
      "6nYnjt00jrIwefv+8DWN+hAomAxDfAgyTShGNLgWmHvYtxjl2SANWySjOA2Lz4Rt7VA18ZIo5BOeHhaVcCtOAg==\n";
  write(place.file("manifest.json.minisig"), signature);
  const auto folder = Folder::open(place.path, ZO_BUNDLE_ERROR);
  const auto keys = parse_keys(key);
  CHECK(keys.ok() && check_signature(*folder, "manifest.json", content, *keys).ok());
  CHECK(!check_signature(*folder, "manifest.json", content + " ", *keys).ok());
  CHECK(!check_signature(*folder, "other.json", content, *keys).ok());
  CHECK(parse_keys(key + "\n" + key + "\n")->size() == 2);
  CHECK(parse_keys("untrusted comment: minisign public key\r\n" + key + "\r\n")->size() == 1);
  for (const std::string& wrong : {std::string(), std::string("\n"), key.substr(1), key + "=", key + " ",
                                   "RWS" + std::string(53, '?'), "AA" + key.substr(2)}) {
    CHECK(!parse_keys(wrong).ok());
  }
}

}  // namespace

int main() {
  test_a_file_that_is_cut_short_while_it_is_read();
  test_the_failure_outlives_the_mapping();
  test_no_file_is_replaced_from_lost_values();
  test_a_full_disk_under_a_mapping();
  test_other_faults_stay_what_they_were();
  test_names_lead_nowhere_else();
  test_one_descriptor_is_one_file();
  test_writes_to_a_copy_stay_in_the_process();
  test_a_signature_of_the_tool();
  return check::result();
}
