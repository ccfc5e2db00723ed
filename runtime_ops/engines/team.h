// Threads that share the loops of our operators. One token of text runs some hundred loops of twenty microseconds with as
// little between them: threads that sleep in between, as those of ExecuTorch's pool do, take longer to wake than a loop
// lasts. These watch for a while (kWatch) before they sleep, and a loop never waits for one that sleeps: whoever
// is awake takes the next piece.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace zoexport {

class Team {
 public:
  // `threads` with the one that calls run.
  explicit Team(size_t threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // The team of the operators of this process, or null while no session has programs.
  static Team* shared() { return shared_.load(std::memory_order_acquire); }
  // Replaces it, when no operator runs.
  static void share(std::unique_ptr<Team> team) { delete shared_.exchange(team.release()); }

  size_t threads() const { return workers_.size() + 1; }

  // Calls body(begin, end) for ranges that make up 0 .. count-1, on the caller's thread and on others where that many
  // times `grain` are there. Alone where another thread's loop is running, or within a loop. The body does not throw.
  template <typename Body>
  void run(size_t count, size_t grain, const Body& body) {
    run_pieces(count, grain, &body,
               [](const void* given, size_t begin, size_t end) { (*static_cast<const Body*>(given))(begin, end); });
  }

 private:
  static std::atomic<Team*> shared_;

  using Call = void (*)(const void* body, size_t begin, size_t end);

  void run_pieces(size_t count, size_t grain, const void* body, Call call);
  void work();
  // Takes and runs the next piece of the running loop; false if none is left.
  bool take_piece();
  bool wait_for_pieces();
  bool has_pieces() const;

  // The loop's number, its pieces, and the next of them, in 32, 16 and 16 bits: who moves the last from what it read has read
  // the rest of that same loop, as another begins only when all pieces are done.
  std::atomic<uint64_t> state_{0};
  std::atomic<const void*> body_{nullptr};
  std::atomic<Call> call_{nullptr};
  std::atomic<size_t> count_{0};
  std::atomic<uint32_t> done_{0};  // pieces of this loop

  std::mutex loop_;  // held by the thread whose loop runs
  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<uint32_t> sleeping_{0};
  std::atomic<bool> stopped_{false};
  std::vector<std::thread> workers_;
};

}  // namespace zoexport
