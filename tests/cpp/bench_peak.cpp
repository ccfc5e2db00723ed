// Prints what this machine's cores can do at most, together and as one line of JSON: multiply-adds of floats and of bytes
// that stay in registers, and reads from memory. The first argument is the number of threads. Programs' products are
// compared with it (research/performance/roofline.py). Of bytes only x86's vectors are measured: not AMX's tiles, nor ARM.
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

// What a thread does kRounds * kSums times: an instruction, or two that belong together.
struct Loop {
  const char* name;
  size_t operations;  // of one time
  void (*run)();
};

// A macro, as a function of other instructions takes no part of a template's.
#define ZO_MULTIPLY_ADDS(Vector, factor, multiply_add, in_a_register) \
  const Vector factors = factor;                                      \
  Vector sums[kSums] = {};                                            \
  for (size_t round = 0; round < kRounds; ++round) {                  \
    _Pragma("GCC unroll 12") for (Vector& sum : sums) {               \
      sum = multiply_add(factors, factors, sum);                      \
      asm volatile("" : in_a_register(sum));                          \
    }                                                                 \
  }

#if defined(__x86_64__)
#define ZO_TARGET(instructions) __attribute__((target(instructions)))

ZO_TARGET("avx512f") void avx512() { ZO_MULTIPLY_ADDS(__m512, _mm512_set1_ps(0.5f), _mm512_fmadd_ps, "+v"); }

ZO_TARGET("avx2,fma") void avx2() { ZO_MULTIPLY_ADDS(__m256, _mm256_set1_ps(0.5f), _mm256_fmadd_ps, "+x"); }

ZO_TARGET("avx512f,avx512vnni") inline __m512i fours(__m512i a, __m512i b, __m512i sums) {
  return _mm512_dpbusd_epi32(sums, a, b);
}
ZO_TARGET("avx512f,avx512vnni") void vnni() { ZO_MULTIPLY_ADDS(__m512i, _mm512_set1_epi32(0x01010101), fours, "+v"); }

ZO_TARGET("avx2") inline __m256i pairs(__m256i a, __m256i b, __m256i sums) {
  __m256i products = _mm256_maddubs_epi16(a, b);
  asm volatile("" : "+x"(products));  // or a compiler takes them out of the loop
  return _mm256_add_epi16(sums, products);
}
ZO_TARGET("avx2") void maddubs() { ZO_MULTIPLY_ADDS(__m256i, _mm256_set1_epi8(1), pairs, "+x"); }

Loop fastest() {
  if (__builtin_cpu_supports("avx512f")) {
    return {"avx512", 2 * 16, avx512};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"avx2", 2 * 8, avx2};
  }
  return {};
}

Loop fastest_of_bytes() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni")) {
    return {"avx512vnni", 2 * 64, vnni};
  }
  return {"avx2", 2 * 32, maddubs};
}
#elif defined(__aarch64__)
float32x4_t multiply_add(float32x4_t a, float32x4_t b, float32x4_t sum) { return vfmaq_f32(sum, a, b); }

void neon() { ZO_MULTIPLY_ADDS(float32x4_t, vdupq_n_f32(0.5f), multiply_add, "+w"); }

Loop fastest() { return {"neon", 2 * 4, neon}; }
Loop fastest_of_bytes() { return {}; }
#else
Loop fastest() { return {}; }
Loop fastest_of_bytes() { return {}; }
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

double operations_a_second(const Loop& loop, int threads) {
  const auto times = static_cast<double>(kRounds * kSums * loop.operations);
  return loop.run == nullptr ? 0 : times * a_second(std::vector<std::function<void()>>(threads, loop.run));
}

}  // namespace

int main(int count, char** arguments) {
  const int threads = count > 1 ? std::atoi(arguments[1]) : 1;
  const Loop floats = fastest(), of_bytes = fastest_of_bytes();
  if (threads < 1 || floats.run == nullptr) {
    std::fprintf(stderr, "usage: bench_peak [THREADS], on a processor with AVX2, AVX-512 or NEON\n");
    return 2;
  }
  // The best of some, as others may use the machine.
  double products = 0, byte_products = 0, bytes = 0;
  std::vector<std::vector<uint64_t>> memory(threads, std::vector<uint64_t>(kBytes / sizeof(uint64_t), 1));
  std::vector<uint64_t> sums(threads);
  for (int round = 0; round < 5; ++round) {
    products = std::max(products, operations_a_second(floats, threads));
    byte_products = std::max(byte_products, operations_a_second(of_bytes, threads));
    std::vector<std::function<void()>> reads;
    for (int i = 0; i < threads; ++i) {
      reads.emplace_back([&, i] { sums[i] += std::accumulate(memory[i].begin(), memory[i].end(), uint64_t{0}); });
    }
    bytes = std::max(bytes, a_second(reads));
  }
  if (std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == 0) {  // so that nobody leaves the reads out
    return 1;
  }
  std::printf("{\"variant\": \"%s\", \"threads\": %d, \"gflops\": %.1f, ", floats.name, threads, 1e-9 * products);
  if (of_bytes.run != nullptr) {
    std::printf("\"bytes_variant\": \"%s\", \"byte_gops\": %.1f, ", of_bytes.name, 1e-9 * byte_products);
  }
  std::printf("\"gb_s\": %.2f}\n", 1e-9 * bytes * static_cast<double>(kBytes));
  return 0;
}
