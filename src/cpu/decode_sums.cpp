// SPDX-License-Identifier: Apache-2.0
// state += k v' with every kept token, o = q state. decay shrinks the state by rate^gap first;
// linear sums phi(k) v', with exp measured from a running top of each coordinate, so that nothing
// overflows and no coordinate is lost.
#include "cpu/decode_sums.hpp"

#include "cpu/diagonal.hpp"

#include <cmath>
#include <limits>

namespace foci::cpu {

namespace {

constexpr float nothing = -std::numeric_limits<float>::infinity();
/// How far a coordinate may outgrow its top before the state is measured anew: rarely.
constexpr float slack = 8;

Phi phi_of(Feature feature) {
  return feature == Feature::elu1 ? Phi::elu1 : feature == Feature::relu ? Phi::relu : Phi::exp;
}

/// -inf stays -inf, whatever it is measured from.
float from_top(float x, float top) { return x == nothing ? nothing : x - top; }

}  // namespace

bool runs_on_sums(const Problem& p) {
  const Weighting& weighting = p.how.weighting;
  if (std::holds_alternative<Linear>(weighting)) return true;
  const auto* decay = std::get_if<Decay>(&weighting);
  if (decay && !decay->content) return true;
  if (p.full || metric::form_of(p.how.metric) == Form::distance) return false;
  const auto* identity = std::get_if<Identity>(&weighting);
  return decay ||
         (identity && (identity->rescale == Rescale::length || identity->rescale == Rescale::none));
}

RunningSums RunningSums::take(Arena& arena, const Problem& p, const DecodeKernels& isa) {
  RunningSums sums;
  sums.p_ = &p;
  sums.isa_ = &isa;
  sums.R_ = p.heads_per_key();
  sums.D_ = p.size.D;
  sums.wide_D_ = padded(p.size.D, isa.lanes);
  sums.wide_E_ = padded(p.size.E, isa.lanes);
  const auto* decay = std::get_if<Decay>(&p.how.weighting);
  if (decay) {  // with content in float, like the state it divides
    sums.rate_ = decay->content ? double(float(decay->rate)) : decay->rate;
    sums.slope_ = float(std::log(sums.rate_));
  }
  if (!runs_on_sums(p)) return sums;
  if (decay && !decay->content) {
    sums.positions_ = arena.take<double>(sums.wide_E_);
    return sums;
  }
  sums.state_ = arena.take<float>(sums.D_, sums.wide_E_);
  if (const auto* linear = std::get_if<Linear>(&p.how.weighting)) {
    sums.sum_ = arena.take<float>(sums.wide_D_);
    if (linear->feature == Feature::exp) sums.top_ = arena.take<float>(sums.D_);
  } else {
    sums.of_bias_ = arena.take<float>(sums.R_, sums.wide_E_);
  }
  return sums;
}

void RunningSums::reset() {
  weight_ = 0;
  for (auto* sum : {&state_, &of_bias_, &sum_}) std::fill(sum->begin(), sum->end(), 0.0f);
  std::fill(top_.begin(), top_.end(), nothing);
  std::fill(positions_.begin(), positions_.end(), 0.0);
}

void RunningSums::pass(std::int64_t t) {
  fade_ = weight_ > 0 ? std::pow(rate_, double(t - last_)) : 1.0;
  if (positions_.empty()) fade_ = double(float(fade_));
  weight_ = fade_ * weight_ + 1;
  last_ = t;
}

void RunningSums::read(float* o, float* q, const Joining* joins, const DecodeCache& cache) {
  std::fill_n(o, R_ * wide_E_, 0.0f);
  if (!positions_.empty()) return read_positions(o, joins);
  if (!sum_.empty()) {
    if (joins) join_linear(*joins);
    read_linear(q);
  }
  const float *k = joins ? joins->k : nullptr, *v = joins ? joins->v : nullptr, one = 1;
  const float fade = float(fade_);
  isa_->run({state_.data(), k, v, fade, q, o, R_, D_, wide_D_, wide_E_});
  for (std::int64_t r = 0; r < R_ && cache.biased; ++r) {
    const float* bias = joins ? &cache.bias[r * cache.step + cache.n - 1] : nullptr;
    isa_->run({&of_bias_[r * wide_E_], bias, v, fade, &one, o + r * wide_E_, 1, 1, 1, wide_E_});
  }
}

void RunningSums::join_linear(const Joining& joins) {
  for (std::size_t d = 0; d < top_.size(); ++d) {
    float& k = joins.k[d];
    if (k > top_[d] + slack) {
      const float shrink = std::exp(top_[d] - k);
      for (std::int64_t e = 0; e < wide_E_; ++e) state_[d * wide_E_ + e] *= shrink;
      sum_[d] *= shrink;
      top_[d] = k;
    }
    k = from_top(k, top_[d]);
  }
  isa_->features(joins.k, joins.k, phi_of(std::get<Linear>(p_->how.weighting).feature), wide_D_);
  for (std::int64_t d = 0; d < D_; ++d) sum_[d] += joins.k[d];
}

void RunningSums::read_linear(float* q) {
  const Phi phi = phi_of(std::get<Linear>(p_->how.weighting).feature);
  for (std::int64_t r = 0; r < R_; ++r) {
    float* line = q + r * wide_D_;
    float most = nothing;
    for (std::size_t d = 0; d < top_.size(); ++d) {
      line[d] += top_[d];
      most = line[d] > most ? line[d] : most;
    }
    for (std::size_t d = 0; d < top_.size(); ++d) line[d] -= most;
    isa_->features(line, line, phi, wide_D_);
  }
}

void RunningSums::read_positions(float* o, const Joining* joins) {
  for (std::int64_t e = 0; e < wide_E_; ++e) {
    if (joins) positions_[e] = fade_ * positions_[e] + double(joins->v[e]);
    for (std::int64_t r = 0; r < R_; ++r) o[r * wide_E_ + e] = float(positions_[e]);
  }
}

float RunningSums::divisor(const float* q, std::int64_t n) const {
  if (std::holds_alternative<Linear>(p_->how.weighting)) return isa_->dot(q, sum_.data(), wide_D_);
  if (std::holds_alternative<Decay>(p_->how.weighting)) return float(weight_);
  const auto* identity = std::get_if<Identity>(&p_->how.weighting);
  return identity && identity->rescale == Rescale::none ? 1.0f : float(n);
}

void RunningSums::similarities(float* x, const float* q, float* room,
                               const DecodeCache& cache) const {
  const Phi phi = phi_of(std::get<Linear>(p_->how.weighting).feature);
  const std::int64_t panel = cache.panel, bytes = bytes_of(cache.key_line);
  for (std::int64_t j = 0; j < cache.n; j += panel) {
    isa_->widen(room, cache.keys.data() + (j * D_ * bytes), cache.key_line, D_ * panel);
    for (std::size_t d = 0; d < top_.size(); ++d) {
      float* line = room + std::int64_t(d) * panel;
      for (std::int64_t i = 0; i < panel; ++i) line[i] = from_top(line[i], top_[d]);
    }
    isa_->features(room, room, phi, D_ * panel);
    isa_->score({.s = x + j,
                 .q = q,
                 .w = nullptr,
                 .bias = nullptr,
                 .keys = room,
                 .line = Line::f32,
                 .R = R_,
                 .n = panel,
                 .D = D_,
                 .q_step = wide_D_,
                 .step = cache.step});
  }
}

}  // namespace foci::cpu
