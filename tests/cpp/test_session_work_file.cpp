// The files that first-order training maps, and its optimizers.
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "session/storage/files.h"
#include "session/storage/scratch.h"
#include "session/storage/two_copies.h"
#include "session/storage/work_file.h"
#include "session/train/optimizer.h"

using namespace zoexport;

namespace {

const std::string kBundle(64, 'a');
constexpr size_t kBytes = 40;  // of a copy

struct Folder {
  Folder() { path = ::mkdtemp(name); }
  ~Folder() { (void)std::system(("rm -r " + path).c_str()); }
  std::string file(const std::string& file) const { return join(path, file); }
  char name[32] = "/tmp/zoexport-work-XXXXXX";
  std::string path;
};

void test_shared_file() {
  const Folder folder;
  auto made = SharedFile::create(folder.file("a"), 100000);
  if (!CHECK(made.ok())) {
    return;
  }
  CHECK(made->size() == 100000 && made->data()[99999] == 0);
  made->data()[70000] = 7;
  const auto opened = SharedFile::open(folder.file("a"), false);
  CHECK(opened.ok() && opened->data()[70000] == 7 && opened->number() == made->number());
  // In place of what is there; the mappings that exist keep the file they have.
  const auto again = SharedFile::create(folder.file("a"), 10);
  CHECK(again.ok() && again->number() != made->number() && made->data()[70000] == 7);
  CHECK(!SharedFile::open(folder.file("none"), true).ok());
  CHECK(!SharedFile::create(folder.file("no/folder"), 10).ok());
  const auto missing = SharedFile::unnamed(folder.file("none"), 10);
  CHECK(!missing.ok() && missing.failure().fix.find("TMPDIR") != std::string::npos);
}

void test_scratch() {
  const Folder folder;
  Scratch scratch(folder.path);
  CHECK(scratch.reserve(1 << 20).ok());
  std::memset(scratch.data(), 5, 1 << 20);
  CHECK(scratch.reserve(1000).ok() && scratch.data()[(1 << 20) - 1] == 5);
  scratch.release(100, 50000);
  CHECK(scratch.data()[50] == 5 && scratch.data()[60000] == 5);
  CHECK(scratch.reserve(1 << 20).ok());
  CHECK(scratch.reserve(2 << 20).ok());
  scratch.data()[(2 << 20) - 1] = 1;
  // Nothing of it has a name.
  CHECK(::rmdir(folder.path.c_str()) == 0 && ::mkdir(folder.path.c_str(), 0700) == 0);
}

void test_work_file() {
  const Folder folder;
  const std::string path = folder.file("work.bin");
  CHECK(!WorkFile::reopen(path, kBundle, kBytes, true));
  {
    auto made = WorkFile::create(path, kBundle, kBytes);
    if (!CHECK(made.ok())) {
      return;
    }
    CHECK(made->steps(0) == WorkFile::kNoSteps && made->steps(1) == WorkFile::kNoSteps);
    made->copy(0)[39] = 15;
    made->copy(1)[0] = 25;
    made->set_steps(1, 3);
    CHECK(!WorkFile::reopen(path, kBundle, kBytes, true));  // not valid yet
    made->set_valid(true);
  }
  for (const bool writable : {false, true}) {
    const auto work = WorkFile::reopen(path, kBundle, kBytes, writable);
    CHECK(work && work->copy(0)[39] == 15 && work->copy(1)[0] == 25 && work->steps(1) == 3);
  }
  CHECK(!boot_id().empty());
  CHECK(!WorkFile::reopen(path, std::string(64, 'b'), kBytes, true));
  CHECK(!WorkFile::reopen(path, kBundle, kBytes + 4, true));
  // A copy of the file has another number.
  const auto content = read_file(path, ZO_STATE_ERROR);
  CHECK(content.ok() && content->size() == 4096 + 2 * kBytes);
  const std::string copy = folder.file("copy");
  CHECK(write_file(copy, [&](int file) { return write_all(file, content->data(), content->size()); }).ok());
  CHECK(!WorkFile::reopen(copy, kBundle, kBytes, true));
  // Any other byte of the header makes it a file of somebody else; the steps of a copy count for themselves.
  for (size_t at = 0; at < 160; ++at) {
    std::string damaged = *content;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    if (std::FILE* file = std::fopen(path.c_str(), "r+b")) {
      std::fwrite(damaged.data(), 1, damaged.size(), file);
      std::fclose(file);
    }
    CHECK(!WorkFile::reopen(path, kBundle, kBytes, true));
  }
}

void test_two_copies() {
  const Folder folder;
  TwoCopies heap(12);
  auto file = WorkFile::unnamed(folder.path, 12);
  if (!CHECK(file.ok())) {
    return;
  }
  TwoCopies mapped(std::move(*file), 1);
  for (TwoCopies* copies : {&heap, &mapped}) {
    copies->current()[11] = 1;
    copies->next()[11] = 2;
    copies->flip();
    CHECK(copies->current()[11] == 2 && copies->next()[11] == 1);
  }
  mapped.set_current_steps(4);
  mapped.set_next_steps(5);
  mapped.flip();
  CHECK(mapped.next_steps() == 4);
  CHECK(heap.next_steps() == WorkFile::kNoSteps);
}

// One value, by hand.
void test_optimizers() {
  const float gradient = 0.5f, value = 2.0f, m = 0.1f, v = 0.04f;
  float next = 0, next_m = 0, next_v = 0;
  UpdateSettings settings;
  settings.learning_rate = 0.1;
  settings.weight_decay = 0.2;
  settings.update = 2;
  settings.scale = 0.5f;
  adamw(settings, {1, &gradient, &value, {&m, &v}, &next, {&next_m, &next_v}});
  const double g = 0.25, em = 0.9 * 0.1 + 0.1 * g, ev = 0.999 * 0.04 + 0.001 * g * g;
  const double moved = 0.1 / (1 - 0.81) * em / (std::sqrt(ev) / std::sqrt(1 - 0.999 * 0.999) + 1e-8);
  CHECK(std::fabs(next_m - em) < 1e-7 && std::fabs(next_v - ev) < 1e-8);
  CHECK(std::fabs(next - (2.0 * (1 - 0.02) - moved)) < 1e-6);
  settings.momentum = 0.9;
  sgd(settings, {1, &gradient, &value, {&m, nullptr}, &next, {&next_m, nullptr}});
  CHECK(std::fabs(next_m - (0.09 + 0.25 + 0.4)) < 1e-6 && std::fabs(next - (2.0 - 0.1 * 0.74)) < 1e-6);
}

}  // namespace

int main() {
  test_shared_file();
  test_scratch();
  test_work_file();
  test_two_copies();
  test_optimizers();
  return check::result();
}
