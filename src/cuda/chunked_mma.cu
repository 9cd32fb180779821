// SPDX-License-Identifier: Apache-2.0
// decay with content and causal identity over bf16, both ways. A block has a head and goes along it
// in chunks of 64 tokens; its warps have 16 rows each of the state S = sum_j r^(last - j) k_j v_j',
// in float. A chunk's rows meet its own keys as weights and all earlier ones through S, which is
// shown to all warps in two 16-bit numbers: one would show where what keys have in common cancels
// in a score. Values that fade on their way into S are rounded once, which is as if weights were.
// On the way back the same goes along heads three times, for dk and dv from their ends.
#include "cuda/chunked_mma.cuh"

#include "cuda/chunk.cuh"
#include "cuda/memory.cuh"
#include "cuda/softmax_tiles.cuh"
#include "cuda/two_parts.cuh"

namespace foci::cuda::chunks {
namespace {

constexpr std::int64_t fewest_heads = 16;  // a block each: fewer leave most of a GPU idle

/// How a block goes about it, and where tiles lie: those of a chunk's tokens in two slots.
template <int width_, bool back_>
struct Fading {
  static constexpr bool back = back_;
  static constexpr DType type = DType::bf16;
  static constexpr int width = width_, warps = width / 16, threads = warps * warp;
  static constexpr int halves = warps / 4;        // of a product's columns: four warps have rows
  static constexpr int own_keys = side / halves;  // a warp's scores: 16 rows of so many
  static constexpr int own_columns = width / halves;

  using X = foci::cuda::Tile<side, width>;   // of tokens
  using P = foci::cuda::Tile<side, side>;    // weights
  using S = foci::cuda::Tile<width, width>;  // the state, a part of it
  static constexpr Address x_at = 0, y_at = X::bytes, z_at = 2 * X::bytes, slot = 3 * X::bytes;
  static constexpr Address faded_at = 2 * slot, state_at = faded_at + X::bytes;
  static constexpr Address p_at = state_at + 2 * S::bytes, fades_at = p_at + P::bytes;
  static constexpr Address shares_at = fades_at + (side + 1) * 4;
  static constexpr std::size_t bytes = shares_at + side * 4;

  using State = float[width / 8][4];       // 16 rows
  using Sums = float[own_columns / 8][4];  // 16 queries
};

FOCI_DEVICE float* floats_at(Address at) { return reinterpret_cast<float*>(shared_memory() + at); }

/// Rows x meet tokens y no later than they, or back no earlier, and gather z: o of q, k and v; dq
/// of d_o, v and k; back dk of v, d_o and q, dv of k, q and d_o. x and `to` have query heads.
struct Strand {
  Shape shape;
  Field x, y, z, to;
  float scale = 1, log2_rate = 0;
};

/// A block's head, and the tokens of its c-th chunk: back the last one is the first.
template <bool back>
struct Head {
  Place at;
  int h, g, count;

  FOCI_DEVICE explicit Head(const Shape& shape) {
    h = block_index() % shape.H, g = shape.key_head(h);
    at = shape.place(block_index() / shape.H);
    count = (at.N + side - 1) / side;
  }
  FOCI_DEVICE int first(int c) const { return side * (back ? count - 1 - c : c); }
};

/// x, y and z of a chunk on their way.
template <class F>
FOCI_DEVICE void bring_chunk(const Strand& of, int c) {
  const Head<F::back> head(of.shape);
  const Address to = shared_address() + c % 2 * F::slot;
  const auto bring = [&](Address at, const Field& from, int line, int before) {
    const auto lines = foci::cuda::Lines::of(from, head.at.b, line, before, head.at.N, F::width);
    foci::cuda::load_tile<typename F::X, F::threads>(to + at, lines, head.first(c));
  };
  if (c < head.count) {
    bring(F::x_at, of.x, head.h, head.at.q0);
    bring(F::y_at, of.y, head.g, head.at.k0);
    bring(F::z_at, of.z, head.g, head.at.k0);
  }
  commit_copies();
}

/// By what queries of a chunk multiply: c over their divisor.
template <class F>
FOCI_DEVICE void find_shares(const Call& call, const Strand& of, int c) {
  const int r = int(threadIdx.x);
  if (r >= side) return;
  const int seen = Head<F::back>(of.shape).first(c) + r + 1;
  const double by = call.divisor == Divisor::nothing ? 1 : powers_sum(call, seen);
  floats_at(F::shares_at)[r] = float(double(of.scale) / by);
}

/// The chunk's weights, rounded, into shared memory.
template <class F>
FOCI_DEVICE void weigh(Address slot) {
  const int mine = int(threadIdx.x) / warp, row = mine % 4 * 16, first = mine / 4 * F::own_keys;
  const Address x = shared_address() + slot + F::x_at + F::X::along();
  const Address y = shared_address() + slot + F::y_at + F::X::across();
  float s[F::own_keys / 8][4] = {};
  FOCI_UNROLL
  for (int step = 0; step < F::width / 16; ++step) {
    unsigned a[4];
    F::X::template operands<false>(a, F::X::beside(x, step), row);
    const Address y_here = F::X::beside(y, step);
    FOCI_UNROLL
    for (int n = 0; n < F::own_keys / 16; ++n) {
      unsigned b[4];
      F::X::template operands<false>(b, y_here, first + 16 * n);
      multiply<F::type>(s[2 * n], a, b[0], b[1]);
      multiply<F::type>(s[2 * n + 1], a, b[2], b[3]);
    }
  }
  const float *fades = floats_at(F::fades_at), *shares = floats_at(F::shares_at);
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int r = row + 8 * half + lane() / 4;
    FOCI_UNROLL
    for (int n = 0; n < F::own_keys / 8; ++n) {
      float w[2];
      FOCI_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int j = first + 8 * n + 2 * (lane() % 4) + i, age = F::back ? j - r : r - j;
        w[i] = age < 0 ? 0.0f : s[n][2 * half + i] * shares[F::back ? j : r] * fades[age];
      }
      const Address to = F::p_at + F::P::at(r, first / 8 + n) + 4 * (lane() % 4);
      *reinterpret_cast<unsigned*>(shared_memory() + to) = pack<F::type>(w[0], w[1]);
    }
  }
}

/// z as the state takes it, faded up to the chunk's end.
template <class F>
FOCI_DEVICE void fade_values(Address slot) {
  const float *fades = floats_at(F::fades_at), *shares = floats_at(F::shares_at);
  FOCI_UNROLL
  for (int part = 0; part < side * F::width / 8 / F::threads; ++part) {
    const int i = int(threadIdx.x) + part * F::threads;
    const int row = i / (F::width / 8), piece = i % (F::width / 8);
    const Address at = F::X::at(row, piece);
    float z[8];
    unpack(z, *reinterpret_cast<const uint4*>(shared_memory() + slot + F::z_at + at), F::type);
    unsigned words[4];
    const float by = F::back ? fades[row] * shares[row] : fades[side - 1 - row];
    FOCI_UNROLL
    for (int n = 0; n < 4; ++n) words[n] = pack<F::type>(by * z[2 * n], by * z[2 * n + 1]);
    *reinterpret_cast<uint4*>(shared_memory() + F::faded_at + at) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// sums += left right, of `rows` common tokens or numbers: right side as load_tile has it.
template <class F, int common, class Right, class Left>
FOCI_DEVICE void add_product(typename F::Sums& sums, Address right, int first, const Left& left) {
  FOCI_UNROLL
  for (int step = 0; step < common / 16; ++step) {
    unsigned a[4];
    left(a, step);
    FOCI_UNROLL
    for (int n = 0; n < F::own_columns / 16; ++n) {
      unsigned b[4];
      Right::template operands<true>(b, Right::beside(right, first / 16 + n), 16 * step);
      multiply<F::type>(sums[2 * n], a, b[0], b[1]);
      multiply<F::type>(sums[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// What rows of a chunk gather: through the state, and by their own chunk's weights.
template <class F>
FOCI_DEVICE void write_rows(const Strand& of, int c, Address slot) {
  const int mine = int(threadIdx.x) / warp, row = mine % 4 * 16, first = mine / 4 * F::own_columns;
  const Address memory = shared_address();
  typename F::Sums sums = {};
  if (c > 0) {
    const Address x = memory + slot + F::x_at + F::X::along();
    FOCI_UNROLL
    for (int part = 0; part < 2; ++part) {
      const Address state = memory + F::state_at + part * F::S::bytes + F::S::along();
      add_product<F, F::width, typename F::S>(sums, state, first, [&](unsigned(&a)[4], int step) {
        F::X::template operands<false>(a, F::X::beside(x, step), row);
      });
    }
    const float *fades = floats_at(F::fades_at), *shares = floats_at(F::shares_at);
    FOCI_UNROLL
    for (int i = 0; i < F::own_columns / 2; ++i) {
      const int r = row + i % 4 / 2 * 8 + lane() / 4;
      sums[i / 4][i % 4] *= F::back ? fades[side - r] : shares[r] * fades[r + 1];
    }
  }
  const Address p = memory + F::p_at + F::P::along();
  add_product<F, side, typename F::X>(
      sums, memory + slot + F::z_at + F::X::along(), first, [&](unsigned(&a)[4], int step) {
        F::P::template operands<false>(a, F::P::beside(p, step), row);
      });
  const Head<F::back> head(of.shape);
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int token = head.first(c) + row + 8 * half + lane() / 4;
    unsigned pairs[F::own_columns / 8];
    FOCI_UNROLL
    for (int n = 0; n < F::own_columns / 8; ++n)
      pairs[n] = pack<F::type>(sums[n][2 * half], sums[n][2 * half + 1]);
    const bool there = token < head.at.N;
    auto* to = static_cast<std::uint16_t*>(of.to.data) +
               of.to.offset(head.at.b, head.h, head.at.q0 + (there ? token : 0), first);
    write_row<F::own_columns>(to, pairs, there, F::own_columns);
  }
}

/// The state takes a chunk.
template <class F>
FOCI_DEVICE void take_chunk(typename F::State& state, Address slot) {
  const Address memory = shared_address();
  const float by = floats_at(F::fades_at)[side];
  FOCI_UNROLL
  for (int i = 0; i < F::width / 2; ++i) state[i / 4][i % 4] *= by;
  const Address y = F::X::beside(memory + slot + F::y_at + F::X::across(), int(threadIdx.x) / warp);
  const Address z = memory + F::faded_at + F::X::along();
#ifndef FOCI_EMULATED
#pragma unroll 2  // a step has enough products
#endif
  for (int step = 0; step < side / 16; ++step) {
    unsigned a[4];
    F::X::template operands<true>(a, y, 16 * step);
    FOCI_UNROLL
    for (int n = 0; n < F::width / 16; ++n) {
      unsigned b[4];
      F::X::template operands<true>(b, F::X::beside(z, n), 16 * step);
      multiply<F::type>(state[2 * n], a, b[0], b[1]);
      multiply<F::type>(state[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// A warp's rows of the state where all warps see them.
template <class F>
FOCI_DEVICE void show_state(const typename F::State& state) {
  const int row = int(threadIdx.x) / warp * 16 + lane() / 4;
  FOCI_UNROLL
  for (int i = 0; i < F::width / 4; ++i) {
    const int half = i % 2, n = i / 2;
    const float x = state[n][2 * half], y = state[n][2 * half + 1];
    const unsigned high = pack<F::type>(x, y);
    const unsigned low = pack<F::type>(x - wide_of(std::uint16_t(high), F::type),
                                       y - wide_of(std::uint16_t(high >> 16), F::type));
    std::byte* to = shared_memory() + F::state_at + F::S::at(row + 8 * half, n) + 4 * (lane() % 4);
    *reinterpret_cast<unsigned*>(to) = high;
    *reinterpret_cast<unsigned*>(to + F::S::bytes) = low;
  }
}

template <class F>
__global__ void __launch_bounds__(F::threads, 1) fading_rows(Call call, Strand of) {
  const int count = Head<F::back>(of.shape).count;
  bring_chunk<F>(of, 0);
  for (int age = int(threadIdx.x); age <= side; age += F::threads)
    floats_at(F::fades_at)[age] = fade(call, age);
  typename F::State state = {};
#ifndef FOCI_EMULATED
#pragma unroll 1
#endif
  for (int c = 0; c < count; ++c) {
    const Address slot = c % 2 * F::slot;
    find_shares<F>(call, of, c);
    await_copies<0>();
    __syncthreads();
    bring_chunk<F>(of, c + 1);
    weigh<F>(slot);
    fade_values<F>(slot);
    __syncthreads();
    write_rows<F>(of, c, slot);
    if (c + 1 == count) return;
    take_chunk<F>(state, slot);
    __syncthreads();
    show_state<F>(state);
  }
}

template <int width, bool back>
void launch_strand(const char* name, const Call& call, const Strand& of, Stream stream) {
  using F = Fading<width, back>;
  const unsigned heads = unsigned(of.shape.sequences) * unsigned(of.shape.H);
  launch(name, fading_rows<F>, {{heads}, {F::threads}, F::bytes}, stream, call, of);
}
template <bool back>
void run_strand(const char* name, const Call& call, const Field& x, const Field& y, const Field& z,
                const Field& to, Stream stream) {
  if (!to.data) return;
  const Strand of{call.shape, x, y, z, to, call.folded.scale, call.log2_rate};
  call.shape.D == 64 ? launch_strand<64, back>(name, call, of, stream)
                     : launch_strand<128, back>(name, call, of, stream);
}

bool in_bf16(const Field& field) { return field.dtype == DType::bf16 && in_pieces(field); }

/// What both ways ask.
bool serves_shape(const Call& call) {
  const Shape& shape = call.shape;
  const Folded& from = call.folded;
  if (call.map != Map::none || call.divisor == Divisor::sum || !call.content || from.scales)
    return false;
  if (shape.D != shape.E || (shape.D != 64 && shape.D != 128)) return false;
  if (shape.q_offsets || shape.N != shape.M || !shape.causal) return false;
  if (from.m.data || from.key_bias.data || from.key_mask.data || from.row_bias.data) return false;
  if (std::int64_t(shape.sequences) * shape.H < fewest_heads) return false;
  if (!in_bf16(from.q) || !in_bf16(from.k) || !in_bf16(from.v)) return false;
  return block_memory() >= (shape.D == 64 ? Fading<64, false>::bytes : Fading<128, false>::bytes);
}

}  // namespace

bool chunked_mma_serves_rows(const Call& call) {
  const Rows& to = call.rows;
  return serves_shape(call) && to.o.data && in_bf16(to.o) && !to.by && !wants_tally(to);
}

bool chunked_mma_serves_gradients(const Call& call) {
  const Sinks& to = call.sinks;
  if (!serves_shape(call) || call.shape.H != call.shape.G || !in_bf16(call.d_o)) return false;
  for (const Field* field : {&to.dq, &to.dk, &to.dv}) {
    if (field->data && !in_bf16(*field)) return false;
  }
  return !to.dm.data && !to.dkey_bias.data;
}

void chunked_mma_forward(const Call& call, Stream stream) {
  const Folded& from = call.folded;
  run_strand<false>("decay by chunks", call, from.q, from.k, from.v, call.rows.o, stream);
}

void chunked_mma_backward(const Call& call, Stream stream) {
  const Folded& from = call.folded;
  const Sinks& to = call.sinks;
  run_strand<false>("decay by chunks, dq", call, call.d_o, from.v, from.k, to.dq, stream);
  run_strand<true>("decay by chunks, dk", call, from.v, call.d_o, from.q, to.dk, stream);
  run_strand<true>("decay by chunks, dv", call, from.k, from.q, call.d_o, to.dv, stream);
}

}  // namespace foci::cuda::chunks
