// Loops compiled for wider registers too.
#pragma once

// Before a function: it is compiled for each of these instruction sets where the loader can choose among functions. The
// bits are the same as long as every lane does the same operations in the same order: nothing is contracted. No two such
// functions have one name, even in unnamed namespaces: what Clang writes to choose among them has external linkage.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define ZO_EACH_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ZO_EACH_WIDTH
#endif
