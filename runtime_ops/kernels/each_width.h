// Loops compiled for wider registers too.
#pragma once

// Put before a function to compile it for each of these instruction sets, if the loader can choose among functions. The
// bits are the same if every lane does the same operations in the same order: nothing is contracted. No two such
// functions may share a name, even in unnamed namespaces: what Clang writes to choose among them has external linkage.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define ZO_EACH_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ZO_EACH_WIDTH
#endif
