// SPDX-License-Identifier: Apache-2.0
// Moments join chunk by chunk in double; a new estimate whitens the cached keys anew, M D D
// multiplications once in `period` tokens. A P that comes with every token is factored only when it
// is not the one before.
#include "cpu/decode_full.hpp"

#include <foci/error.hpp>

#include <cstring>

namespace foci::cpu {

namespace {

/// Keys whitened at a time: whole panels.
constexpr std::int64_t whitened_keys = 64;

}  // namespace

WhiteningRoom WhiteningRoom::take(Arena& arena, const Problem& p, const Kernels& isa) {
  WhiteningRoom room;
  if (!p.full) return room;
  const std::int64_t D = p.size.D;
  room.wide = arena.take<double>(covariance_room(*isa.matrix, D) + 2 * D * D);
  const std::int64_t lines = std::max(whitened_keys, p.heads_per_key());
  for (auto* some : {&room.centred, &room.whitened}) *some = arena.take<double>(lines, D);
  room.lines = arena.take<float>(lines, D);
  return room;
}

RunningWhitening RunningWhitening::take(Arena& arena, const Problem& p, const Kernels& isa) {
  RunningWhitening of;
  of.p_ = &p;
  of.isa_ = &isa;
  if (!p.full) return of;
  of.D_ = p.size.D;
  const int moments = p.metric<KeyCovariance>() ? 2 : 0;
  of.means_ = arena.take<double>(moments, of.D_);
  of.sums_ = arena.take<double>(moments, of.D_, of.D_);
  of.factor_ = arena.take<double>(of.D_, of.D_);
  of.Wt_ = arena.take<double>(of.D_, of.D_);
  of.centre_ = arena.take<float>(of.D_);
  return of;
}

void RunningWhitening::reset() {
  chunk_ = -1;
  known_ = 0;
  std::fill(centre_.begin(), centre_.end(), 0.0f);
  std::fill(means_.begin(), means_.end(), 0.0);
  std::fill(sums_.begin(), sums_.end(), 0.0);
}

Moments RunningWhitening::moments(int which, std::int64_t n) const {
  return {n, &means_[which * D_], &sums_[which * D_ * D_]};
}

void RunningWhitening::prepare(const DecodeCache& cache, const NextToken& token,
                               const WhiteningRoom& room) {
  p_->metric<Given>() ? load_given(cache, token, room) : estimate(cache, token, room);
}

/// At every `period` keys the metric is estimated anew from all keys so far.
void RunningWhitening::estimate(const DecodeCache& cache, const NextToken& token,
                                const WhiteningRoom& room) {
  const auto& how = *p_->metric<KeyCovariance>();
  const std::int64_t chunk = metric::chunk_of(cache.n, how.period);
  if (chunk == chunk_) return;
  const metric::Shrinkage shrink{how.ridge, *how.prior};
  Moments all = moments(1 - now_, cache.n - known_);
  gather(all, cache.key_lines.data() + (known_ * D_), D_, *isa_->matrix, room.wide.data());
  join(all, moments(now_, known_), D_, *isa_->matrix, room.wide.data());
  all.n = cache.n;
  const int raises = cpu::whiten(factor_.data(), all, shrink, D_, *isa_->matrix, room.wide.data());
  if (raises < 0) throw NumericalError(metric::unfactorable(token.b, token.g, cache.n, how.ridge));
  chunk_ = chunk;
  known_ = cache.n;
  now_ = 1 - now_;
  for (std::int64_t i = 0; i < D_; ++i) {
    for (std::int64_t j = 0; j < D_; ++j) Wt_[j * D_ + i] = factor_[i * D_ + j];
  }
  for (std::int64_t d = 0; d < D_; ++d) centre_[d] = float(all.mean[d]);
  place(cache, room);
}

/// P = L L' with W = L', so that L itself is the transpose.
void RunningWhitening::load_given(const DecodeCache& cache, const NextToken& token,
                                  const WhiteningRoom& room) {
  const View& given = token.of.from.metric;
  const std::int64_t b = given.shape[0] == 1 ? 0 : token.b, square = D_ * D_;
  double *P = room.wide.data() + covariance_room(*isa_->matrix, D_), *W = P + square;
  for (std::int64_t d = 0; d < D_; ++d) metric::load(P + d * D_, given, {b, token.g, d}, D_);
  if (given_ && std::memcmp(P, factor_.data(), std::size_t(square) * sizeof *P) == 0) return;
  whiten_given(W, given, {b, token.g}, *isa_->matrix, room.wide.data());
  given_ = true;
  std::copy_n(P, square, factor_.begin());
  for (std::int64_t i = 0; i < D_; ++i) {
    for (std::int64_t j = 0; j < D_; ++j) Wt_[j * D_ + i] = W[i * D_ + j];
  }
  place(cache, room);
}

/// All cached keys, as the metric sees them.
void RunningWhitening::place(const DecodeCache& cache, const WhiteningRoom& room) {
  float* keys = reinterpret_cast<float*>(cache.keys.data());
  for (std::int64_t j = 0; j < cache.n; j += whitened_keys) {
    const std::int64_t count = std::min(whitened_keys, cache.n - j);
    whiten(room.lines.data(), cache.key_lines.data() + (j * D_), count, D_, room);
    isa_->pack_keys(keys + j * D_, room.lines.data(), count, D_);
  }
}

void RunningWhitening::append(const DecodeCache& cache, const WhiteningRoom& room) {
  const std::int64_t j = cache.n - 1;
  const float* key = cache.key_lines.data() + (j * D_);
  // No mean of keys yet: distances do not feel the centre, but their rounding does.
  if (j == 0) std::copy_n(key, D_, centre_.begin());
  whiten(room.lines.data(), key, 1, D_, room);
  float* to = reinterpret_cast<float*>(cache.keys.data()) + j / cache.panel * cache.panel * D_ +
              j % cache.panel;
  for (std::int64_t d = 0; d < D_; ++d) to[d * cache.panel] = room.lines[d];
}

void RunningWhitening::whiten(float* z, const float* x, std::int64_t rows, std::int64_t step,
                              const WhiteningRoom& room) const {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t d = 0; d < D_; ++d)
      room.centred[i * D_ + d] = double(x[i * step + d]) - double(centre_[d]);
  }
  isa_->matrix->product_wide({.c = room.whitened.data(),
                              .a = room.centred.data(),
                              .b = Wt_.data(),
                              .rows = rows,
                              .cols = D_,
                              .K = D_,
                              .c_step = D_,
                              .a_row = D_,
                              .a_k = 1,
                              .b_step = D_,
                              .add = false});
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t d = 0; d < D_; ++d) z[i * step + d] = float(room.whitened[i * D_ + d]);
  }
}

}  // namespace foci::cpu
