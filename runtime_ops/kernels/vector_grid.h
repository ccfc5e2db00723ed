// The kernels of grid_kernels.h on the vectors of an instruction set. V meets vector_products.h, and R, with as many
// lanes, meets rng/vector_levels.h and has first_lanes(). In addition, V has
//
//   Int                        vectors of int32_t
//   clamp(value, low, high)    of the lanes of an Int
//   least(a, b)                the lesser float
//   to_int(value)              of floats towards zero, as a Word of int32_t
//   none(word)                 whether no lane has a bit
//   load_halves(from), store_halves(to, word)    kLanes numbers of 16 bits, at any address
//
// and the same care for symbols.
#pragma once

#include "grid_kernels.h"
#include "rng/vector_levels.h"
#include "vector_products.h"

namespace zoexport {
namespace kernels {
namespace detail {

// Signed byte i of the lanes, the lowest being 0.
template <typename V>
typename V::Int signed_byte(typename V::Word word, size_t i) {
  return (typename V::Int)(word << static_cast<uint32_t>(24 - 8 * i)) >> 24;
}

// --- panels ---------------------------------------------------------------------------------------

// The levels of row p of the columns from `unit` on.
template <typename V, typename R>
typename V::Int levels_of(const uint32_t* levels, size_t unit, size_t p, size_t i) {
  const uint32_t* rows = levels + unit / rng::kLevelRows * kLevelWords + unit % rng::kLevelRows;
  return signed_byte<V>(R::load(rows + (p + i) / 4 * rng::kLevelRows), i % 4);
}

template <typename V, typename R>
void grid_fill_int4(Int4Matrix b, Part part, const uint32_t* levels, float* plus, float* minus) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  typedef typename V::Int Int;
  unpack_int4_transposed<V>(b, part, [=](size_t at, size_t unit, size_t p, size_t i, Word code, Float scale) {
    const Int level = levels_of<V, R>(levels, unit, p, i), from = (Int)(code & 15u);
    V::store(plus + at, V::int4_values((Word)V::clamp(from + level, 0, 15)) * scale);
    V::store(minus + at, V::int4_values((Word)V::clamp(from - level, 0, 15)) * scale);
  });
}

template <typename V, typename R>
void grid_fill_int8(Int8Matrix b, Part part, const uint32_t* levels, float* plus, float* minus) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  typedef typename V::Int Int;
  unpack_int8_transposed<V>(b, part, [=](size_t at, size_t unit, size_t p, size_t i, Word code, Float scale) {
    const Int level = levels_of<V, R>(levels, unit, p, i), from = (Int)code;
    V::store(plus + at, V::to_float((Word)V::clamp(from + level, -127, 127)) * scale);
    V::store(minus + at, V::to_float((Word)V::clamp(from - level, -127, 127)) * scale);
  });
}

// --- the update -----------------------------------------------------------------------------------

// S(v) by the words r, for sizes v; sizes above 255 count as 255.
template <typename V>
typename V::Int rounded_size(typename V::Float v, typename V::Word r) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  typedef typename V::Int Int;
  v = V::least(v, V::broadcast(255.0f));
  const Word whole = V::to_int(v);
  // The threshold in two halves, as not all have a conversion to 32 bits without sign. Nothing is rounded.
  const Float part = (v - V::to_float(whole)) * 0x1p16f;
  const Word high = V::to_int(part);
  const Word low = V::to_int((part - V::to_float(high)) * 0x1p16f);
  const Int more = (Int)(r < (high << 16 | low));  // -1 where it is
  return (Int)whole - more;
}

// S(c level) by the words r. size is |c|, at most 255. negative is -1 where c is negative, else 0.
template <typename V>
typename V::Int moves(typename V::Int level, typename V::Word r, float size, int32_t negative) {
  typedef typename V::Word Word;
  typedef typename V::Int Int;
  const Int below_zero = level >> 31;
  const Word k = (Word)((level ^ below_zero) - below_zero);
  const Int sign = below_zero ^ negative;
  return (rounded_size<V>(V::to_float(k) * V::broadcast(size), r) ^ sign) - sign;
}

// The words of vectors of consecutive blocks, from `first` on.
template <typename R>
void consecutive(const rng::Stream& stream, uint32_t first, typename R::Word (&word)[4][rng::detail::kTogether]) {
  for (uint32_t i = 0; i < rng::detail::kTogether; ++i) {
    word[0][i] = R::first_lanes() + (first + i * static_cast<uint32_t>(R::kLanes));
  }
  rng::detail::vector_philox<R>(stream, word);
}

// Calls add(query's stream, levels of vectors of consecutive blocks from `first` on, |c| up to 255, whether c is negative)
// for the queries that move some of their elements.
template <typename V, typename R, typename Levels, typename Add>
void each_query(const GridUpdate& update, const Levels& levels, uint32_t first, const Add& add) {
  typedef typename V::Word Word;
  constexpr size_t kTogether = rng::detail::kTogether;
  const float rate = update.learning_rate / static_cast<float>(update.queries);
  for (uint32_t query = 0; query < update.queries; ++query) {
    const float c = (rate * update.gradients[query]) / update.eps;
    const float size = c < 0.0f ? -c : c;
    if (!(size > 0.0f)) {  // nor for NaN
      continue;
    }
    Word word[4][kTogether], level[kTogether], any = {};
    const rng::Stream stream{update.seed, update.tensor_id, query, update.step - 1};
    consecutive<R>(stream, first, word);
    for (size_t i = 0; i < kTogether; ++i) {
      level[i] = levels.four(word, i);
      any |= level[i];
    }
    if (!V::none(any)) {
      add(stream, level, size < 255.0f ? size : 255.0f, c < 0.0f);
    }
  }
}

// Make the words that round the moves of a stream's elements.
template <typename R>
void rounding_words(rng::Stream stream, uint32_t first, typename R::Word (&word)[4][rng::detail::kTogether]) {
  stream.tensor_id |= rng::kRounding;
  consecutive<R>(stream, first, word);
}

// Adds sum_i S(c_i Q(u_i)) of vectors of consecutive blocks, from `first` on: sums[e] are those of their elements e.
template <typename V, typename R, typename Levels>
void add_moves(const GridUpdate& update, const Levels& levels, uint32_t first,
               typename V::Int (&sums)[4][rng::detail::kTogether]) {
  typedef typename V::Word Word;
  constexpr size_t kTogether = rng::detail::kTogether;
  each_query<V, R>(update, levels, first,
                   [&](const rng::Stream& stream, const Word(&level)[kTogether], float size, bool negative) {
                     Word word[4][kTogether];
                     rounding_words<R>(stream, first, word);
#pragma GCC unroll 4
                     for (size_t e = 0; e < 4; ++e) {
                       for (size_t i = 0; i < kTogether; ++i) {
                         sums[e][i] += moves<V>(signed_byte<V>(level[i], e), word[e][i], size, -negative);
                       }
                     }
                   });
}

// Adds S(sum_i c_i Q(u_i)), the sum in float32 and in the order of the queries, by the words of query 0.
template <typename V, typename R, typename Levels>
void add_summed_move(const GridUpdate& update, const Levels& levels, uint32_t first,
                     typename V::Int (&sums)[4][rng::detail::kTogether]) {
  typedef typename V::Float Float;
  typedef typename V::Word Word;
  typedef typename V::Int Int;
  constexpr size_t kTogether = rng::detail::kTogether;
  Float moved[4][kTogether] = {};
  each_query<V, R>(update, levels, first,
                   [&](const rng::Stream&, const Word(&level)[kTogether], float size, bool negative) {
                     const Float c = V::broadcast(negative ? -size : size);
#pragma GCC unroll 4
                     for (size_t e = 0; e < 4; ++e) {
                       for (size_t i = 0; i < kTogether; ++i) {
                         const Float move = V::to_float((Word)signed_byte<V>(level[i], e)) * c;
                         moved[e][i] = moved[e][i] + move;
                       }
                     }
                   });
  Word word[4][kTogether];
  rounding_words<R>({update.seed, update.tensor_id, 0, update.step - 1}, first, word);
#pragma GCC unroll 4
  for (size_t e = 0; e < 4; ++e) {
    for (size_t i = 0; i < kTogether; ++i) {
      const Word bits = (Word)moved[e][i];
      const Int sign = (Int)bits >> 31;
      sums[e][i] = (rounded_size<V>((Float)(bits & 0x7FFFFFFFu), word[e][i]) ^ sign) - sign;
    }
  }
}

// rng::kElements integers, from block `first` on. Calls put(block, sums of its four elements) for vectors of blocks.
template <typename V, typename R, typename Put>
void update_blocks(const GridUpdate& update, uint32_t first, const Put& put) {
  constexpr size_t kTogether = rng::detail::kTogether;
  const rng::Rounding rounding = update.second ? rng::Rounding::kSecond : rng::Rounding::kFirst;
  rng::detail::with_levels<R>(update.table, rounding, [&](const auto& levels) {
    for (size_t block = 0; block < rng::kBlocks; block += kTogether * V::kLanes) {
      typename V::Int sums[4][kTogether] = {};
      const uint32_t begin = first + static_cast<uint32_t>(block);
      if (update.summed) {
        add_summed_move<V, R>(update, levels, begin, sums);
      } else {
        add_moves<V, R>(update, levels, begin, sums);
      }
      for (size_t i = 0; i < kTogether; ++i) {
        put(block + i * V::kLanes, sums[0][i], sums[1][i], sums[2][i], sums[3][i]);
      }
    }
  });
}

template <typename V, typename R>
void grid_update_int4(const GridUpdate& update, uint32_t first, const uint8_t* codes, uint8_t* out) {
  typedef typename V::Word Word;
  typedef typename V::Int Int;
  update_blocks<V, R>(update, first, [&](size_t block, Int s0, Int s1, Int s2, Int s3) {
    const Word code = V::load_halves(codes + 2 * block);
    const auto moved = [&](uint32_t e, Int sum) {
      return (Word)V::clamp((Int)(code >> (4 * e) & 15u) - sum, 0, 15) << (4 * e);
    };
    V::store_halves(out + 2 * block, moved(0, s0) | moved(1, s1) | moved(2, s2) | moved(3, s3));
  });
}

template <typename V, typename R>
void grid_update_int8(const GridUpdate& update, uint32_t first, const uint8_t* codes, uint8_t* out) {
  typedef typename V::Word Word;
  typedef typename V::Int Int;
  update_blocks<V, R>(update, first, [&](size_t block, Int s0, Int s1, Int s2, Int s3) {
    const Word code = R::load(codes + 4 * block);
    const auto moved = [&](uint32_t e, Int sum) {
      return ((Word)V::clamp(signed_byte<V>(code, e) - sum, -127, 127) & 255u) << (8 * e);
    };
    R::store(out + 4 * block, moved(0, s0) | moved(1, s1) | moved(2, s2) | moved(3, s3));
  });
}

}  // namespace detail

template <typename V, typename R>
constexpr GridKernels vector_grid_kernels() {
  static_assert(V::kLanes == R::kLanes, "the same lanes");
  return {rng::vector_levels<R>, detail::grid_fill_int4<V, R>, detail::grid_fill_int8<V, R>,
          detail::grid_update_int4<V, R>, detail::grid_update_int8<V, R>};
}

}  // namespace kernels
}  // namespace zoexport
