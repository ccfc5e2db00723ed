#include "session/storage/faults.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <utility>

namespace zoexport {

// Never freed, since the handler goes through all of them without a lock; used again by later guards.
struct MappingGuard::Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0: not in use
  std::atomic<std::atomic<bool>*> seen{nullptr};
  std::atomic<bool> hit{false};
  Range* next = nullptr;
  bool used = false;  // these are the mutex's
  std::string path;
  zo_status code = ZO_STATE_ERROR;
};

namespace {

using Range = MappingGuard::Range;

std::atomic<Range*> ranges{nullptr};
struct sigaction before = {};
uintptr_t page_bytes = 0;

std::mutex& mutex() {
  static std::mutex* made = new std::mutex;  // never destroyed: guards may end after static objects
  return *made;
}

// Replace the faulting page and the rest of its range by zeros. Runs on the faulting thread; calls only mmap.
bool replaced(uintptr_t at) {
  for (Range* range = ranges.load(std::memory_order_acquire); range != nullptr; range = range->next) {
    const uintptr_t end = range->end.load(std::memory_order_acquire);
    if (end == 0 || at < range->begin.load(std::memory_order_relaxed) || at >= end) {
      continue;
    }
    const uintptr_t page = at / page_bytes * page_bytes;
    void* const from = reinterpret_cast<void*>(page);  // NOLINT(performance-no-int-to-ptr): an address of the kernel's
    if (::mmap(from, end - page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED) {
      return false;
    }
    range->hit.store(true, std::memory_order_relaxed);
    range->seen.load(std::memory_order_relaxed)->store(true, std::memory_order_release);
    return true;
  }
  return false;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (info->si_code > 0 && replaced(reinterpret_cast<uintptr_t>(info->si_addr))) {
    return;
  }
  // Another's: a virtual machine or a crash reporter may have a use for it.
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    struct sigaction usual = {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(signal, &usual, nullptr);
    if (info->si_code <= 0) {
      ::raise(signal);  // sent, so that it would not come again by itself
    }
  }
}

void install_once() {
  static const bool installed = [] {
    page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction ours = {};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&ours.sa_mask);  // a macro on Apple's systems
    return ::sigaction(SIGBUS, &ours, &before) == 0;
  }();
  (void)installed;
}

thread_local std::shared_ptr<Faults> of_thread;

Failure lost(const Range& range) {
  return {range.code, range.path, "content that cannot be read or written any more",
          "a file that nothing else cuts short, on a disk with room",
          "Free space or bring the file back, and open the bundle again; the last good state is kept."};
}

}  // namespace

const std::shared_ptr<Faults>& Faults::current() {
  static const auto* shared = new std::shared_ptr<Faults>(std::make_shared<Faults>());
  return of_thread ? of_thread : *shared;
}

Faults::Scope::Scope(std::shared_ptr<Faults> faults) : before_(std::exchange(of_thread, std::move(faults))) {}

Faults::Scope::~Scope() { of_thread = std::move(before_); }

Status Faults::failure() const {
  const std::lock_guard<std::mutex> lock(mutex());
  for (const Range* range = ranges.load(); range != nullptr; range = range->next) {
    if (range->used && range->hit && range->seen.load() == &seen_) {
      return lost(*range);
    }
  }
  return of_ended_;
}

MappingGuard::MappingGuard(const void* data, size_t size, const std::string& path, zo_status code) {
  if (data == nullptr || size == 0) {
    return;
  }
  install_once();
  faults_ = Faults::current();
  const std::lock_guard<std::mutex> lock(mutex());
  range_ = ranges.load();
  while (range_ != nullptr && range_->used) {
    range_ = range_->next;
  }
  if (range_ == nullptr) {
    range_ = new Range;
    range_->next = ranges.load();
    ranges.store(range_, std::memory_order_release);
  }
  range_->used = true;
  range_->path = path;
  range_->code = code;
  range_->hit = false;
  range_->seen = &faults_->seen_;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  range_->begin = begin;
  range_->end.store((begin + size + page_bytes - 1) / page_bytes * page_bytes, std::memory_order_release);
}

MappingGuard::MappingGuard(MappingGuard&& other) noexcept
    : range_(std::exchange(other.range_, nullptr)), faults_(std::move(other.faults_)) {}

MappingGuard& MappingGuard::operator=(MappingGuard&& other) noexcept {
  std::swap(range_, other.range_);
  std::swap(faults_, other.faults_);
  return *this;
}

MappingGuard::~MappingGuard() {
  if (range_ != nullptr) {
    const std::lock_guard<std::mutex> lock(mutex());
    range_->end = 0;
    if (range_->hit) {
      faults_->of_ended_ = lost(*range_);
    }
    range_->used = false;
  }
}

}  // namespace zoexport
