// SPDX-License-Identifier: Apache-2.0
// One block of softmax attention over bf16 with AVX512-BF16: an instruction multiplies sixteen
// pairs and adds both products to sixteen floats. The walk is that of softmax.cpp with pairs in
// place of floats; bf16_softmax.hpp has what lies between the two products.
#include "cpu/narrow.hpp"
#include "cpu/vec_avx512.hpp"

#include <math.h>

namespace foci::cpu::avx512bf16 {

#include "cpu/bf16_vector.hpp"

#include "cpu/bf16_pack.hpp"

#include "cpu/bf16_softmax.hpp"

#include "cpu/bf16_finish.hpp"

static constexpr int tile_rows = 8;

/// c[i][j] += sum over pairs of a(i) b(j): rows of a every `step` bf16, b one line of 32 pairs
/// after the other.
template <int Rows, int Vectors>
FOCI_INLINE void multiply(V (&c)[Rows][Vectors], const std::uint16_t* a, long step, const float* b,
                          long pairs) {
#pragma GCC unroll 4
  for (long k = 0; k < pairs; ++k, a += 2, b += panel) {
    __m512bh line[Vectors];
#pragma GCC unroll 2
    for (int j = 0; j < Vectors; ++j) line[j] = (__m512bh)_mm512_loadu_si512(b + j * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      int pair;
      __builtin_memcpy(&pair, a + i * step, sizeof pair);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
      for (int j = 0; j < Vectors; ++j) c[i][j] = _mm512_dpbf16_ps(c[i][j], x, line[j]);
    }
  }
}

/// Products of tile_rows queries with a panel of keys.
static void score(const Running& run, const ForwardBlock& block, long r, long key) {
  V c[tile_rows][2];
#pragma GCC unroll 8
  for (int i = 0; i < tile_rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  for (int part = run.parts - 1; part >= 0; --part) {  // the smallest first
    multiply(c, run.q + (part * run.rows + r) * run.D, run.D, block.keys + key * run.D / 2,
             (block.D + 1) / 2);
  }
#pragma GCC unroll 8
  for (int i = 0; i < tile_rows; ++i) {
    store(run.scores + i * panel, c[i][0]);
    store(run.scores + i * panel + lanes, c[i][1]);
  }
}

/// o += weights x values of Rows rows and one or two vectors of columns; = where it is the first.
template <int Rows, int Vectors>
FOCI_INLINE void gather(float* o, long step, const std::uint16_t* weights, const float* values,
                        long pairs, bool first) {
  V c[Rows][Vectors];
  const __mmask16 kept = first ? 0 : 0xffff;
#pragma GCC unroll 16
  for (int t = 0; t < Rows * Vectors; ++t) {
    const float* from = o + (t / Vectors) * step + (t % Vectors) * lanes;
    c[t / Vectors][t % Vectors] = _mm512_maskz_loadu_ps(kept, from);
  }
  multiply(c, weights, stride, values, pairs);
#pragma GCC unroll 16
  for (int t = 0; t < Rows * Vectors; ++t)
    store(o + (t / Vectors) * step + (t % Vectors) * lanes, c[t / Vectors][t % Vectors]);
}

/// Keys [common, seen) of one row, common even. The last may be half of a pair: its neighbour is
/// not even multiplied with 0, for it may be infinite.
template <int Vectors>
static void gather_row(float* o, const std::uint16_t* weights, const float* values, long common,
                       long seen) {
  if (seen <= common) return;
  const long pairs = (seen - common) / 2;
  gather<1, Vectors>(o, 0, weights + common, values + common / 2 * panel, pairs, false);
  if (seen % 2 == 0) return;
  float last[panel];
  const __m512i half = _mm512_set1_epi32(0xffff);
  for (int j = 0; j < Vectors; ++j) {
    const __m512i pair = _mm512_loadu_si512(values + seen / 2 * panel + j * lanes);
    _mm512_storeu_si512(last + j * lanes, _mm512_and_si512(pair, half));
  }
  gather<1, Vectors>(o, 0, weights + seen - 1, last, 1, false);
}

/// One tile of rows, `Vectors` vectors of columns from e on, keys [key, key + count).
template <int Vectors>
static void gather_tile(const Running& run, const ForwardBlock& block, long r, long e, long key,
                        long count) {
  float* o = run.o + r * run.E + e;
  const std::uint16_t* weights = run.weights + r * stride;
  const float* values = block.values + (e * padded(block.value_rows, panel) + key * panel) / 2;
  const long seen = run.sees[r] - key;  // rows see more and more
  const long common = seen >= count ? (count + 1) / 2 * 2 : seen <= 0 ? 0 : seen / 2 * 2;
  gather<tile_rows, Vectors>(o, run.E, weights, values, common / 2, key == 0);
  for (long i = 0; i < tile_rows && common < count; ++i) {
    const long own = run.sees[r + i] - key;
    gather_row<Vectors>(o + i * run.E, weights + i * stride, values, common,
                        own < count ? own : count);
  }
}

static void gather_block(const Running& run, const ForwardBlock& block, long key, long count) {
  for (long e = 0; e < block.E; e += panel) {
    for (long r = 0; r < run.rows; r += tile_rows) {
      if (block.E - e > lanes) {
        gather_tile<2>(run, block, r, e, key, count);
      } else {
        gather_tile<1>(run, block, r, e, key, count);
      }
    }
  }
}

static void softmax_forward(const NarrowForward& block) {
  const Running run = start(block, tile_rows, tile_rows * panel);
  const long last = run.sees[run.rows - 1];
  for (long key = 0; key < last; key += block_keys) {
    const long count = block.n - key < block_keys ? block.n - key : block_keys;
    for (long column = 0; column < count; column += panel) {
      for (long r = 0; r < run.rows; r += tile_rows) {
        if (run.sees[r + tile_rows - 1] <= key + column) continue;
        score(run, block, r, key + column);
        weigh_tile(run, block, {key, r, tile_rows, column}, run.scores, [](long) {});
      }
    }
    gather_block(run, block, key, count);
  }
  finish(run, block);
}

static std::int64_t forward_scratch(std::int64_t D, std::int64_t E) {
  return scratch_of(D, E, tile_rows * panel);
}

const NarrowKernels kernels = {"avx512bf16", panel,     forward_scratch, keys_room,
                               values_room,  pack_keys, pack_values,     softmax_forward};

}  // namespace foci::cpu::avx512bf16
