// Prints what this machine's cores can do at most, together and as one line of JSON: multiply-adds of floats that stay
// in registers, and reads from memory. The first argument is the number of threads. Programs' products are compared
// with it (research/performance/roofline.py).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSeconds = 0.5;  // for each number
constexpr size_t kRounds = 1 << 16;
constexpr size_t kSums = 12;                // as many as the latency and the units of known processors ask for
constexpr size_t kBytes = size_t{1} << 27;  // far above the caches

struct Variant {
  const char* name;
  size_t lanes;
  void (*multiply_add)();  // kRounds * kSums vectors
};

// A macro, as a function of other instructions takes no part of a template's.
#define ZO_MULTIPLY_ADDS(Vector, broadcast, multiply_add, in_a_register) \
  const Vector factor = broadcast(0.5f);                                 \
  Vector sums[kSums] = {};                                               \
  for (size_t round = 0; round < kRounds; ++round) {                     \
    _Pragma("GCC unroll 12") for (Vector& sum : sums) {                  \
      sum = multiply_add(factor, factor, sum);                           \
      asm volatile("" : in_a_register(sum));                             \
    }                                                                    \
  }

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void avx512() { ZO_MULTIPLY_ADDS(__m512, _mm512_set1_ps, _mm512_fmadd_ps, "+v"); }

__attribute__((target("avx2,fma"))) void avx2() { ZO_MULTIPLY_ADDS(__m256, _mm256_set1_ps, _mm256_fmadd_ps, "+x"); }

Variant fastest() {
  if (__builtin_cpu_supports("avx512f")) {
    return {"avx512", 16, avx512};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"avx2", 8, avx2};
  }
  return {};
}
#elif defined(__aarch64__)
float32x4_t multiply_add(float32x4_t a, float32x4_t b, float32x4_t sum) { return vfmaq_f32(sum, a, b); }

void neon() { ZO_MULTIPLY_ADDS(float32x4_t, vdupq_n_f32, multiply_add, "+w"); }

Variant fastest() { return {"neon", 4, neon}; }
#else
Variant fastest() { return {}; }
#endif

// How often a second each thread does it while all do, together.
double a_second(const std::vector<std::function<void()>>& bodies) {
  std::vector<double> rates(bodies.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] {
      const Clock::time_point start = Clock::now();
      double passed = 0;
      for (size_t times = 1; passed < kSeconds; ++times) {
        bodies[i]();
        passed = std::chrono::duration<double>(Clock::now() - start).count();
        rates[i] = static_cast<double>(times) / passed;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  const Variant variant = fastest();
  if (threads < 1 || variant.multiply_add == nullptr) {
    std::fprintf(stderr, "usage: bench_peak [THREADS], on a processor with AVX2, AVX-512 or NEON\n");
    return 2;
  }
  // The best of some, as others may use the machine.
  double products = 0, bytes = 0;
  std::vector<std::vector<uint64_t>> memory(threads, std::vector<uint64_t>(kBytes / sizeof(uint64_t), 1));
  std::vector<uint64_t> sums(threads);
  for (int round = 0; round < 5; ++round) {
    products = std::max(products, a_second(std::vector<std::function<void()>>(threads, variant.multiply_add)));
    std::vector<std::function<void()>> reads;
    for (int i = 0; i < threads; ++i) {
      reads.emplace_back([&, i] { sums[i] += std::accumulate(memory[i].begin(), memory[i].end(), uint64_t{0}); });
    }
    bytes = std::max(bytes, a_second(reads));
  }
  if (std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == 0) {  // so that nobody leaves the reads out
    return 1;
  }
  std::printf("{\"variant\": \"%s\", \"threads\": %d, \"gflops\": %.1f, \"gb_s\": %.2f}\n", variant.name, threads,
              2e-9 * products * static_cast<double>(kRounds * kSums * variant.lanes),
              1e-9 * bytes * static_cast<double>(kBytes));
  return 0;
}
