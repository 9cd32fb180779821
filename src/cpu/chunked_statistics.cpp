// SPDX-License-Identifier: Apache-2.0
// Row statistics of linear, identity and decay with content: every weight again, block by block of
// keys, never the whole matrix. Costs N M D, so only when asked.
#include "cpu/chunked_passes.hpp"

#include <cmath>

namespace foci::cpu {

bool wants_tally(const Outputs& to) {
  return to.concentration || to.effective_keys || to.entropy || to.largest || to.largest_at;
}

void write_tally(const Outputs& to, const metric::Index& at, const Tally& of, std::int64_t n,
                 std::int64_t largest_at) {
  const bool nothing = of.largest == 0;
  const double concentration = nothing ? 0 : of.sizes / std::sqrt(double(n) * of.squares);
  metric::store_one(to.concentration, at, concentration);
  metric::store_one(to.effective_keys, at, double(n) * concentration * concentration);
  metric::store_one(to.entropy, at, of.entropy);
  metric::store_one(to.largest, at, of.largest);
  metric::store_one(to.largest_at, at, largest_at);
}

void tally_rows(ChunkWork& work, const Outputs& to, const RowBlock& rows, const float* peak) {
  const ChunkPlan& plan = work.plan;
  const Tokens& t = work.tokens();
  ChunkRoom& room = work.room;
  // The chunk's own keys stay: other memory takes the place of theirs.
  std::swap(room.keys, room.dk);
  std::swap(room.keys_across, room.values_across);
  std::fill_n(room.tallies.begin(), rows.count, Tally{});
  const std::int64_t most = t.sees[rows.first + rows.count - 1];
  for (std::int64_t key = 0; key < most; key += plan.chunk) {
    const Chunk block{key, std::min(key + plan.chunk, most), peak};
    work.load_keys(block);
    work.transpose_keys(block);
    std::int64_t unseeing = 0;
    while (t.sees[rows.first + unseeing] <= key) ++unseeing;
    const RowBlock some{rows.r, rows.first + unseeing, rows.count - unseeing};
    work.see(some, block);
    work.score(some, unseeing);
    work.weigh(room.scores.data(), some, block, plan.biased());
    for (std::int64_t i = 0; i < some.count; ++i) {
      float* weights = room.scores.data() + i * plan.chunk;
      work.divide_row(weights, room.by[unseeing + i], room.visible[i]);
      work.kernels.tally(room.tallies[unseeing + i], weights, room.visible[i], key,
                         plan.divides && bool(to.entropy));
    }
  }
  std::swap(room.keys, room.dk);
  std::swap(room.keys_across, room.values_across);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const Tally& of = room.tallies[i];
    const metric::Index at{t.at.b, work.head.g * plan.R + rows.r, t.at.q0 + rows.first + i};
    write_tally(to, at, of, t.sees[rows.first + i],
                of.largest_at < 0 ? -1 : t.key_at[of.largest_at]);
  }
}

}  // namespace foci::cpu
