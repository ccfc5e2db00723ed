// The levels of levels.h on the vectors of an instruction set. In addition to what vector_philox.h requires, V has
//
//   load(from), store(to, word)    at any address
//   kFewBits            the log2 of the size of the largest table that Few is made of
//   Few, Any            made of (entries, log2_size): find(index, thresholds, pairs) gives the entries of the lanes. Few
//                       keeps the table in registers
#pragma once

#include "levels.h"
#include "vector_philox.h"

namespace zoexport {
namespace rng {
namespace detail {

// Finds the levels of words by a table that V::Few or V::Any has.
template <typename V, typename Entries>
struct Levels {
  typedef typename V::Word Word;

  const Entries entries;
  const uint32_t log2_size;
  const uint32_t own;  // where its byte begins; the alias's lies 16 bits higher

  Levels(const PairTable& table, Rounding rounding)
      : entries(table.entries, table.log2_size), log2_size(table.log2_size), own(8 * static_cast<uint32_t>(rounding)) {}

  // In the lowest bytes; the others are zero.
  Word one(Word word) const {
    Word threshold, pairs;
    entries.find(word >> (32 - log2_size), threshold, pairs);
    const Word is_own = (Word)((word << log2_size) < threshold);
    pairs = pairs >> own;
    return ((pairs & is_own) | ((pairs >> 16) & ~is_own)) & 255u;
  }

  // The levels of the words of vector i of blocks, the first in the lowest byte.
  Word four(const Word (&word)[4][kTogether], size_t i) const {
    return one(word[0][i]) | one(word[1][i]) << 8 | one(word[2][i]) << 16 | one(word[3][i]) << 24;
  }
};

// Calls body(levels) with the Levels that are fastest for the table.
template <typename V, typename Body>
inline void with_levels(const PairTable& table, Rounding rounding, const Body& body) {
  if (table.log2_size <= V::kFewBits) {
    body(Levels<V, typename V::Few>(table, rounding));
  } else {
    body(Levels<V, typename V::Any>(table, rounding));
  }
}

}  // namespace detail

template <typename V>
inline void vector_levels(const Stream& stream, const LevelRows& rows, const PairTable& table, Rounding rounding,
                          uint32_t* out) {
  constexpr uint32_t kAcross = kLevelRows / V::kLanes;     // vectors of a row of blocks
  constexpr uint32_t kDown = detail::kTogether / kAcross;  // rows of blocks at a time
  static_assert(size_t{kAcross} * kDown == detail::kTogether, "4, 8 or 16 lanes");
  detail::with_levels<V>(table, rounding, [&](const auto& levels) {
    for (uint32_t b = 0; b < rows.count; b += kDown) {
      typename V::Word word[4][detail::kTogether];
      for (uint32_t i = 0; i < detail::kTogether; ++i) {
        word[0][i] = V::load(rows.first + i % kAcross * V::kLanes) + (b + i / kAcross) * rows.stride;
      }
      detail::vector_philox<V>(stream, word);
      for (size_t i = 0; i < detail::kTogether; ++i) {
        V::store(out + b * kLevelRows + i * V::kLanes, levels.four(word, i));
      }
    }
  });
}

}  // namespace rng
}  // namespace zoexport
