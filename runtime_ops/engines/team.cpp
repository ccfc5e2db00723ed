#include "engines/team.h"

#include <algorithm>
#include <chrono>

namespace zoexport {
namespace {

constexpr size_t kPiecesOfAThread = 2;  // so that a thread that others slow down does less
constexpr size_t kMostPieces = 0xFFFF;
constexpr std::chrono::microseconds kWatch{200};
constexpr int kLooksBetweenTimes = 64;

thread_local bool within_a_loop = false;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t pieces_of(uint64_t state) { return state >> 16 & 0xFFFF; }
uint64_t next_of(uint64_t state) { return state & 0xFFFF; }
bool left(uint64_t state) { return next_of(state) < pieces_of(state); }

// Return whether `ready` becomes true within kWatch.
template <typename Ready>
bool watch(const Ready& ready) {
  const auto end = std::chrono::steady_clock::now() + kWatch;
  do {
    for (int look = 0; look < kLooksBetweenTimes; ++look) {
      if (ready()) {
        return true;
      }
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

std::atomic<Team*> Team::shared_{nullptr};

Team::Team(size_t threads) {
  for (size_t i = 1; i < threads; ++i) {
    workers_.emplace_back([this] { work(); });
  }
}

Team::~Team() {
  {
    const std::lock_guard<std::mutex> lock(sleep_);
    stopped_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void Team::run_pieces(size_t count, size_t grain, const void* body, Call call) {
  const size_t worth = std::min(threads(), count / std::max<size_t>(1, grain));
  std::unique_lock<std::mutex> lock(loop_, std::defer_lock);
  if (worth < 2 || within_a_loop || !lock.try_lock()) {
    if (count > 0) {
      call(body, 0, count);
    }
    return;
  }
  const uint64_t pieces = std::min({count, worth * kPiecesOfAThread, kMostPieces});
  body_.store(body, std::memory_order_relaxed);
  call_.store(call, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  state_.store(number << 32 | pieces << 16);
  if (sleeping_.load() > 0) {
    const std::lock_guard<std::mutex> sleep(sleep_);
    wake_.notify_all();
  }
  within_a_loop = true;
  while (take_piece()) {
  }
  within_a_loop = false;
  while (done_.load(std::memory_order_acquire) != pieces) {
    if (!watch([&] { return done_.load(std::memory_order_acquire) == pieces; })) {
      std::this_thread::yield();
    }
  }
}

bool Team::take_piece() {
  uint64_t state = state_.load(std::memory_order_acquire);
  while (left(state)) {
    const void* body = body_.load(std::memory_order_relaxed);
    const Call call = call_.load(std::memory_order_relaxed);
    const size_t count = count_.load(std::memory_order_relaxed);
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      const size_t pieces = pieces_of(state), piece = next_of(state);
      const size_t each = count / pieces, more = count % pieces;
      const size_t begin = piece * each + std::min(piece, more);
      call(body, begin, begin + each + (piece < more ? 1 : 0));
      done_.fetch_add(1, std::memory_order_release);
      return true;
    }
  }
  return false;
}

bool Team::has_pieces() const { return left(state_.load()); }

void Team::work() {
  within_a_loop = true;
  while (wait_for_pieces()) {
    while (take_piece()) {
    }
  }
}

// False when the team stops.
bool Team::wait_for_pieces() {
  if (watch([this] { return has_pieces() || stopped_.load(std::memory_order_relaxed); })) {
    return !stopped_;
  }
  std::unique_lock<std::mutex> lock(sleep_);
  ++sleeping_;
  wake_.wait(lock, [this] { return has_pieces() || stopped_; });
  --sleeping_;
  return !stopped_;
}

}  // namespace zoexport
