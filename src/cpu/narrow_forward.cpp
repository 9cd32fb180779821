// SPDX-License-Identifier: Apache-2.0
// What the forward pass does otherwise over bf16: keys and values are packed as they are, queries
// stay where they lie unless a metric multiplies them.
#include "cpu/forward.hpp"
#include "cpu/narrow_lines.hpp"

namespace foci::cpu {

void Forward::pack_narrow(std::int64_t s, std::int64_t g, std::int64_t piece, int thread) {
  const Tokens& tokens = geometry_.tokens(s);
  const std::int64_t head = slot(s, g, thread), D = p_.size.D, E = p_.size.E;
  const std::int64_t first = piece * narrow_piece, count = std::min(narrow_piece, tokens.n - first);
  if (count <= 0) return;
  Bf16* lines = rooms_[thread].narrow_lines.data();
  narrow_->pack_keys(keys_.data() + (head * key_room_),
                     narrow_keys(tokens, p_.from.k, g, first, count, D, lines), first);
  narrow_->pack_values(values_.data() + (head * value_room_),
                       narrow_keys(tokens, p_.from.v, g, first, count, E, lines), first, tokens.n);
}

void Forward::place_narrow(NarrowForward& block, const Meeting& at, std::int64_t first,
                           Room& room) const {
  const Tokens& tokens = geometry_.tokens(at.s);
  block.scale = float(geometry_.scale(at.s, geometry_.key_head(at.h)));
  block.split = geometry_.weighted_queries(at, first, block.rows, room.q.data());
  std::fill_n(room.r.begin(), block.rows, 0.0f);
  if (block.split) return;
  const NarrowLines q = narrow_queries(tokens, p_.from.q, at.h, first, block.rows, p_.size.D,
                                       room.narrow_lines.data());
  block.narrow_q = q.from;
  block.narrow_step = q.step;
}

}  // namespace foci::cpu
