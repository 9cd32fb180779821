// SPDX-License-Identifier: Apache-2.0
// The work of a tile pass and its places: which queries and keys a block has, which of them see
// each other, and by how much a weight of decay has faded.
#pragma once

#include "cuda/tile.cuh"

#include <climits>
#include <type_traits>

namespace foci::cuda::tile {

/// What kernels of both passes look at.
struct Work {
  Shape shape;
  Folded folded;
  Weigh weigh;
  Lines q, k, v, m;
  int parts = 1;  // blocks that share the queries of a chunk

  FOCI_DEVICE int chunks() const { return folded.spans ? folded.chunks : 1; }
  FOCI_DEVICE int heads_per_key() const { return shape.H / shape.G; }
  /// decay without content looks at positions alone.
  FOCI_DEVICE bool scored() const { return weigh.kind != Kind::decay; }
  FOCI_DEVICE bool fades() const {
    return weigh.kind == Kind::decay || weigh.kind == Kind::decay_content;
  }
  FOCI_DEVICE float c(int s, int g) const {
    return folded.scale * (folded.scales ? folded.scales[s * shape.G + g] : 1.0f);
  }
  /// What the sums of score() are multiplied by.
  template <Score form>
  FOCI_DEVICE float scale(int s, int g) const {
    return form == Score::product ? c(s, g) : -0.5f * c(s, g);
  }
};

/// Calls f(form, width) with the constants of the kernels for a problem; a metric of ones is none.
template <class F>
void with_form(const Shape& shape, const Folded& folded, const F& f) {
  const int most = shape.D > shape.E ? shape.D : shape.E;
  const auto with = [&](auto form) {
    if (most <= 64) return f(form, std::integral_constant<int, 64>{});
    if (most <= 128) return f(form, std::integral_constant<int, 128>{});
    return f(form, std::integral_constant<int, 256>{});
  };
  if (folded.score == Score::product) return with(std::integral_constant<Score, Score::product>{});
  if (folded.score == Score::weighted && folded.m.data)
    return with(std::integral_constant<Score, Score::weighted>{});
  return with(std::integral_constant<Score, Score::difference>{});
}

inline Work work_of(const Shape& shape, const Folded& folded, const Weigh& weigh, int rows) {
  Work work{shape, folded, weigh, {}, {}, {}, {}, 1};
  work.q = lines_of(folded.q, 4, shape.D);
  work.k = lines_of(folded.k, folded.spans ? 5 : 4, shape.D);
  work.v = lines_of(folded.v, 4, shape.E);
  if (folded.m.data) work.m = lines_of(folded.m, 4, shape.D);
  const std::int64_t chunks = folded.spans && folded.most_chunks > 1 ? folded.most_chunks : 1;
  work.parts = int(parts(shape.longest_n, chunks * rows));
  return work;
}

/// Blocks of a kernel that goes through queries: sequences, heads, chunks, parts.
inline std::int64_t query_blocks(const Work& work) {
  const int chunks = work.folded.spans ? work.folded.chunks : 1;
  return std::int64_t(work.shape.sequences) * work.shape.H * chunks * work.parts;
}

/// Queries [first, last) of a sequence.
struct Span {
  int first, last;
};

/// Queries of the wave's chunk c; all of them where there are no chunks.
FOCI_DEVICE Span span_of(const Work& work, const Place& at, int s, int c) {
  const Folded& folded = work.folded;
  if (!folded.spans) return {0, at.N};
  const int* span = folded.spans + std::int64_t(s) * (folded.most_chunks + 1);
  return {span[folded.first_chunk + c], span[folded.first_chunk + c + 1]};
}

/// Where key j of a sequence lies in the lines of chunk c.
FOCI_DEVICE std::int64_t key_offset(const Work& work, const Field& k, const Place& at, int c, int g,
                                    int j) {
  return work.folded.spans ? k.offset(c, at.b, g, at.k0 + j) : k.offset(at.b, g, at.k0 + j);
}

/// Which sequence, head and chunk the queries of a block belong to. The longest rows come first.
struct Seat {
  int s, h, g, c, part;
  Place at;
};

FOCI_DEVICE Seat seat_of(const Work& work) {
  unsigned index = blockIdx.x;
  Seat seat;
  seat.part = work.parts - 1 - int(index % unsigned(work.parts));
  index /= unsigned(work.parts);
  seat.c = int(index % unsigned(work.chunks()));
  index /= unsigned(work.chunks());
  seat.h = int(index % unsigned(work.shape.H));
  seat.s = int(index / unsigned(work.shape.H));
  seat.g = work.shape.key_head(seat.h);
  seat.at = work.shape.place(seat.s);
  return seat;
}

/// Whether tensor cores serve a key head.
FOCI_DEVICE bool elsewhere(const Work& work, int s, int g) {
  return work.folded.by_mma && work.folded.by_mma[s * work.shape.G + g] != 0;
}

FOCI_DEVICE bool keeps(const Work& work, const Place& at, int j) {
  const Field& mask = work.folded.key_mask;
  if (j >= at.M) return false;
  return !mask || static_cast<const std::uint8_t*>(mask.data)[mask.offset(at.b, at.k0 + j)] != 0;
}

FOCI_DEVICE float bias_of(const Work& work, const Place& at, int h, int g, int j) {
  const Field& bias = work.folded.key_bias;
  if (!bias || j >= at.M) return 0;
  return bias.load(at.b, work.folded.key_head_bias ? g : h, at.k0 + j);
}

/// What a tile knows of its keys, in shared memory: a query sees those that stand before its
/// reach. Masked keys stand nowhere.
inline constexpr int nowhere = INT_MAX;

FOCI_DEVICE int stand_of(const Work& work, const Place& at, int j) {
  return keeps(work, at, j) ? j : nowhere;
}

/// Where each of `count` queries from i0 on looks back from: its last visible key. Powers of decay
/// are taken from there, so that masked keys at the end do not make all of them vanish.
FOCI_DEVICE void find_last_seen(int* to, const Work& work, const Place& at, int i0, int count) {
  const int warps = int(blockDim.x) / warp, mine = int(threadIdx.x) / warp;
  const int each = (count + warps - 1) / warps;
  int before = -1;  // of the row before: reaches never fall
  for (int row = mine * each; row < (mine + 1) * each && row < count; ++row) {
    int from = work.shape.reach(at, i0 + row);
    unsigned kept = 0;
    while (from - 1 > before) {
      const int j = from - 1 - lane();
      kept = __ballot_sync(~0u, j >= 0 && keeps(work, at, j));
      if (kept) break;
      from -= warp;
    }
    if (kept) before = from - __ffs(int(kept));
    if (lane() == 0) to[row] = before;
  }
}

}  // namespace foci::cuda::tile
