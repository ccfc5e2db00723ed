// Loops shared by a team: every number once, whatever the threads, the grain and who else calls; loops within loops; teams
// that are asleep; and the end of a team.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "engines/team.h"

using zoexport::Team;

namespace {

// Runs 0 .. count-1 and checks that each was run once, in ranges that are not empty.
void every_number_once(Team& team, size_t count, size_t grain) {
  std::vector<std::atomic<int>> seen(count);
  std::atomic<bool> filled{true};
  team.run(count, grain, [&](size_t begin, size_t end) {
    filled = filled && begin < end && end <= count;
    for (size_t i = begin; i < end; ++i) {
      ++seen[i];
    }
  });
  bool once = filled;
  for (const std::atomic<int>& one : seen) {
    once = once && one == 1;
  }
  CHECK(once);
}

void loops_of_any_size() {
  for (const size_t threads : {1u, 2u, 3u, 7u}) {
    Team team(threads);
    CHECK(team.threads() == threads);
    for (const size_t count : {0u, 1u, 2u, 3u, 5u, 16u, 63u, 1000u, 100000u}) {
      for (const size_t grain : {0u, 1u, 2u, 40u, 100000u}) {
        every_number_once(team, count, grain);
      }
    }
  }
}

void many_small_loops() {
  Team team(3);
  uint64_t sum = 0;
  for (uint64_t loop = 0; loop < 20000; ++loop) {
    std::atomic<uint64_t> added{0};
    team.run(6, 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        added += loop + i;
      }
    });
    sum += added;
  }
  CHECK(sum == 6 * (uint64_t{20000} * 19999 / 2) + 20000 * 15);
}

void less_than_the_grain_is_for_the_caller() {
  Team team(4);
  const auto caller = std::this_thread::get_id();
  size_t calls = 0;
  team.run(7, 4, [&](size_t begin, size_t end) {
    ++calls;
    CHECK(begin == 0 && end == 7 && std::this_thread::get_id() == caller);
  });
  CHECK(calls == 1);
}

void loops_within_loops() {
  Team team(3);
  std::atomic<size_t> sum{0};
  team.run(30, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      team.run(100, 1, [&](size_t first, size_t last) { sum += last - first; });
    }
  });
  CHECK(sum == 3000);
}

void callers_side_by_side() {
  Team team(3);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (size_t loop = 0; loop < 500; ++loop) {
        every_number_once(team, 50 + loop % 7, 1 + loop % 3);
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
}

void a_team_that_sleeps() {
  Team team(3);
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    every_number_once(team, 1000, 1);
  }
}

void teams_that_end() {
  for (int i = 0; i < 200; ++i) {
    Team team(4);
    if (i % 2 == 0) {
      every_number_once(team, 100, 1);
    }
  }
  CHECK(Team::shared() == nullptr);
  Team::share(std::make_unique<Team>(2));
  every_number_once(*Team::shared(), 100, 1);
  Team::share(nullptr);
  CHECK(Team::shared() == nullptr);
}

}  // namespace

int main() {
  loops_of_any_size();
  many_small_loops();
  less_than_the_grain_is_for_the_caller();
  loops_within_loops();
  callers_side_by_side();
  a_team_that_sleeps();
  teams_that_end();
  return check::result();
}
