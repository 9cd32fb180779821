// SPDX-License-Identifier: Apache-2.0
// The layer-change estimate inside the forward pass on Hopper, by two warps that have nothing else
// to do: one sums up |v - v_prev| of whatever tokens nobody has yet, while the tensor cores are
// busy with earlier heads; the other waits for a tile's head to be summed up, makes it m and tells
// the warpgroups that compute. Blocks take units as they come, so none waits for one that has not
// started, and sums are the same bits whoever made them.
#pragma once

#include "cuda/softmax_wgmma_block.cuh"

namespace foci::cuda {

#ifdef FOCI_HOPPER

/// What a box on its way is: where its sums go, its first token, its sequence, and whether it ends
/// a unit of the head before `done`.
struct alignas(16) Box {
  int row, token, b, done;
};

/// Where boxes are told of, and the one that is sent for next: tiles `tile` up to `end`, of 64
/// tokens. In shared memory, for registers are few.
template <class W>
FOCI_DEVICE volatile Box& box_at(int box) {
  return reinterpret_cast<volatile Box*>(tile_memory() + W::tags_at)[box];
}
template <class W>
FOCI_DEVICE volatile int2& tiles_left() {
  return *reinterpret_cast<volatile int2*>(tile_memory() + W::tags_at +
                                           sizeof(Box) * (W::boxes + 1));
}

/// The next unit that nobody has, if there is one.
template <class W>
FOCI_DEVICE bool take_unit(const Changes& of, int G) {
  const int unit = atomicAdd(of.taken, 1);
  if (unit >= of.units) return false;
  const int part = unit / W::panels % of.parts, head = unit / W::panels / of.parts;
  volatile Box& next = box_at<W>(W::boxes);
  next.row = unit, next.b = head / G, next.done = head + 1;
  tiles_left<W>().x = part * of.each, tiles_left<W>().y = min(part * of.each + of.each, of.tiles);
  return true;
}

/// Sends for the next 64 tokens of the unit, or of the next one: one lane.
template <class W>
FOCI_DEVICE void send_for_box(const WgmmaArgs& args, Address memory, int box) {
  const Changes& of = args.changes;
  volatile Box &to = box_at<W>(box), &next = box_at<W>(W::boxes);
  if (tiles_left<W>().x == tiles_left<W>().y && !take_unit<W>(of, args.shape.G)) {
    to.row = -1;
    return;
  }
  const int tile = tiles_left<W>().x, row = next.row, b = next.b, head = next.done - 1;
  tiles_left<W>().x = tile + 1;
  to.row = row, to.b = b, to.token = 64 * tile;
  to.done = tile + 1 == tiles_left<W>().y ? head + 1 : 0;
  const Address full = Barriers<W>(memory).box_full(box);
  const Address at = memory + W::boxes_at + 2 * box * W::box_bytes;
  const int panel = 64 * (row % W::panels), g = head - b * args.shape.G;
  arrive_expecting(full, 2 * W::box_bytes);
  fetch_tile(at, of.v, full, panel, 64 * tile, g, b);
  fetch_tile(at + W::box_bytes, of.v_prev, full, panel, 64 * tile, g, b);
}

/// A lane's sums: two columns of the tokens that count.
struct ChangeSums {
  float x[2] = {};
  int count = 0;

  /// Loads of eight tokens go together: there are no branches between them.
  template <class W>
  FOCI_DEVICE void add(const Changes& of, int M, int box) {
    const std::byte* from = tile_memory() + W::boxes_at + 2 * box * W::box_bytes + lane() % 4 * 4;
    const int piece = lane() / 4;
    unsigned kept = ~0u;
#pragma unroll 1
    for (int eight = 0; eight < changes_box; eight += 8, from += 8 * W::line) {
      if (W::biased && of.mask) {
        kept = __ballot_sync(~0u, keeps(of, M, box_at<W>(box), eight + lane() % 8)) & 0xff;
        count += __popc(kept);
      }
      unsigned now[8], before[8];
      FOCI_UNROLL
      for (int i = 0; i < 8; ++i) {
        const std::byte* at = from + i * W::line + (piece ^ i) * 16;
        now[i] = *reinterpret_cast<const unsigned*>(at);
        before[i] = *reinterpret_cast<const unsigned*>(at + W::box_bytes);
      }
      FOCI_UNROLL
      for (int i = 0; i < 8; ++i) {
        const float a = change<W>(now[i], before[i]), b = change<W>(now[i] >> 16, before[i] >> 16);
        x[0] += !W::biased || kept >> i & 1 ? a : 0.0f;
        x[1] += !W::biased || kept >> i & 1 ? b : 0.0f;
      }
    }
  }
  FOCI_DEVICE static bool keeps(const Changes& of, int M, const volatile Box& box, int i) {
    const auto* mask = static_cast<const std::uint8_t*>(of.mask.data);
    return box.token + i < M && mask[of.mask.offset(box.b, box.token + i)];
  }
  template <class W>
  FOCI_DEVICE static float change(unsigned now, unsigned before) {
    return fabsf(wide_of(std::uint16_t(now), W::type) - wide_of(std::uint16_t(before), W::type));
  }
  /// To where a unit's sums lie, 64 columns a row; and they start anew.
  template <class W>
  FOCI_DEVICE void write(const Changes& of, int row) {
    reinterpret_cast<float2*>(of.sums)[32 * std::int64_t(row) + lane()] = make_float2(x[0], x[1]);
    if (lane() == 0 && of.mask && row % W::panels == 0) of.counts[row / W::panels] = count;
    *this = {};
  }
};

/// The warp that sums up.
template <class W>
FOCI_DEVICE void add_up_changes(const WgmmaArgs& args, Address memory) {
  const Changes& of = args.changes;
  if (lane() == 0) {
    tiles_left<W>().x = 0, tiles_left<W>().y = 0;
#pragma unroll 1
    for (int box = 0; box < W::boxes; ++box) send_for_box<W>(args, memory, box);
  }
  ChangeSums sums;
  for (int turn = 0;; ++turn) {
    const int box = turn % W::boxes;
    __syncwarp();
    const int row = box_at<W>(box).row, done = box_at<W>(box).done;
    if (row < 0) return;
    await(Barriers<W>(memory).box_full(box), turn / W::boxes % 2);
    sums.template add<W>(of, args.shape.M, box);
    if (done) {
      sums.template write<W>(of, row);
      __threadfence();
    }
    __syncwarp();
    if (lane() != 0) continue;
    if (done) publish(of.ready + done - 1);
    send_for_box<W>(args, memory, box);
  }
}

/// m of a head, the lane's W::width / 32 numbers that lie side by side.
template <class W>
struct HeadMetric {
  static constexpr int each = W::width / warp;
  float x[each];

  FOCI_DEVICE void take(const Changes& of, int M, int head) {
    if (lane() == 0) await_count(of.ready + head, of.parts * W::panels);
    __syncwarp();
    double sum[each] = {};
    int counted = of.mask ? 0 : M;
    const float* from = of.sums + std::int64_t(head) * of.parts * W::width + each * lane();
#pragma unroll 2
    for (int part = 0; part < of.parts; ++part) {
      FOCI_UNROLL
      for (int i = 0; i < each; ++i) sum[i] += double(__ldcg(from + part * W::width + i));
    }
    for (int part = lane(); of.mask && part < of.parts; part += warp)
      counted += __ldcg(of.counts + head * of.parts + part);
    if (of.mask) counted = __reduce_add_sync(~0u, counted);
    FOCI_UNROLL
    for (int i = 0; i < each; ++i) x[i] = counted > 0 ? float(sum[i]) / float(counted) : 0.0f;
    normalize(of, counted);
  }
  /// As divisor_of() and flat_of() have it.
  FOCI_DEVICE void normalize(const Changes& of, int counted) {
    float most = 0, all = 0;
    FOCI_UNROLL
    for (int i = 0; i < each; ++i) most = x[i] > most ? x[i] : most, all += x[i];
    const float first = __shfl_sync(~0u, x[0], 0);
    most = warp_max(most), all = warp_sum(all);
    float by = of.normalize == Normalize::max ? most : all / float(W::width);
    if (of.normalize == Normalize::none) by = 1;
    if (first != first) by = of.normalize == Normalize::none ? 1 : first;
    if (counted == 0) by = 0;
    FOCI_UNROLL
    for (int i = 0; i < each; ++i) x[i] = by == 0 ? 1.0f : x[i] / by;
    if (!of.flat) return;
    float sum = 0;
    FOCI_UNROLL
    for (int i = 0; i < each; ++i) sum += x[i];
    sum = warp_sum(sum) / float(W::width);
    FOCI_UNROLL
    for (int i = 0; i < each; ++i) x[i] = sum;
  }
  FOCI_DEVICE void write(float* to) const {
    FOCI_UNROLL
    for (int i = 0; i < each; ++i) to[each * lane() + i] = x[i];
  }
};

/// The warp that tells m of each tile's key head.
template <class W>
FOCI_DEVICE void tell_metric(const WgmmaArgs& args, Address memory) {
  const Slots<W> slots{memory};
  HeadMetric<W> m;
  int known = -1;
  for (int round = 0;; ++round) {
    const Piece<W> piece(args, slots.read(round));
    if (!piece.there) return slots.release(round);
    const int head = piece.s * args.shape.G + piece.g, slot = round % W::slots;
    if (head != known) m.take(args.changes, args.shape.M, head);
    known = head;
    m.write(args.changes.m + std::int64_t(head) * W::width);  // everybody the same
    m.write(reinterpret_cast<float*>(tile_memory() + W::m_at) + slot * W::width);
    __syncwarp();
    arrive_as_warp(Barriers<W>(memory).m_full(slot));
    slots.release(round);
  }
}

#endif  // FOCI_HOPPER

}  // namespace foci::cuda
