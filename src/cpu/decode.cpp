// SPDX-License-Identifier: Apache-2.0
// One token of a decoder: into the cache, the metric and the sums; then its query heads' rows.
#include "cpu/decode.hpp"

#include <cmath>
#include <limits>

namespace foci::cpu {

namespace {

bool positions_alone(const Weighting& weighting) {
  const auto* decay = std::get_if<Decay>(&weighting);
  return decay && !decay->content;
}

/// Weights are polynomials of the scores: a small one counts as much as its own digits.
bool scores_are_weights(const Weighting& weighting) {
  return !std::holds_alternative<Softmax>(weighting) &&
         !std::holds_alternative<Linear>(weighting) && !positions_alone(weighting);
}

bool asks_for_weights(const Outputs& to) {
  return to.concentration || to.effective_keys || to.entropy || to.largest || to.largest_at;
}

Remembered remembered(const Problem& p) {
  const bool jacobian = p.metric<Jacobian>() != nullptr;
  return {.keys = !positions_alone(p.how.weighting),
          .whitened = p.full,
          .values = !runs_on_sums(p),
          .key_lines = jacobian || p.full,
          .value_lines = jacobian};
}

}  // namespace

Decoding::Decoding(Arena& arena, const Problem& cache, DType type, const Kernels& isa)
    : p_(cache),
      isa_(isa),
      rows_(*isa.decode),
      R_(cache.heads_per_key()),
      D_(cache.size.D),
      wide_D_(padded(cache.size.D, isa.decode->lanes)),
      wide_E_(padded(cache.size.E, isa.decode->lanes)),
      step_(padded(cache.longest_m, isa.panel)),
      on_sums_(runs_on_sums(cache)),
      distances_(cache.full || metric::form_of(cache.how.metric) == Form::distance),
      wide_(scores_are_weights(cache.how.weighting)) {
  s_ = arena.take<float>(R_, step_);
  for (auto* lines : {&q_, &folded_, &spread_}) *lines = arena.take<float>(R_, wide_D_);
  for (auto* lines : {&wide_folded_, &wide_spread_})
    *lines = arena.take<double>(wide_ ? R_ : 0, wide_D_);
  k_ = arena.take<float>(wide_D_);
  for (auto* line : {&v_, &v_prev_}) *line = arena.take<float>(wide_E_);
  o_ = arena.take<float>(R_, wide_E_);
  whitening_ = WhiteningRoom::take(arena, p_, isa);
  jacobian_ = JacobianScratch::take(arena, p_);
  panel_ = arena.take<float>(D_, isa.panel);
  heads_.reserve(arena.times(p_.size.B, p_.size.G));
  for (std::int64_t b = 0; b < p_.size.B; ++b) {
    for (std::int64_t g = 0; g < p_.size.G; ++g) {
      heads_.push_back({.b = b,
                        .g = g,
                        .cache = DecodeCache::take(arena, p_, type, remembered(p_), isa),
                        .metric = RunningMetric::take(arena, p_),
                        .full = RunningWhitening::take(arena, p_, isa),
                        .sums = RunningSums::take(arena, p_, rows_)});
    }
  }
  facts_.resize(std::size_t(R_));
}

void Decoding::reset() {
  t_ = 0;
  for (Head& head : heads_) {
    head.cache.n = 0;
    head.cache.biased = false;
    head.metric.reset(head.g);
    head.full.reset();
    head.sums.reset();
  }
}

void Decoding::prepare(const Problem& tokens) {
  for (Head& head : heads_) {
    if (!p_.full) return;
    head.full.prepare(head.cache, {tokens, head.b, head.g, 0, t_, true}, whitening_);
  }
}

void Decoding::step(const Outputs& to, const Problem& tokens, std::int64_t i) {
  const View& mask = tokens.from.key_mask;
  for (Head& head : heads_) {
    const bool kept = !mask || metric::load_one<std::uint8_t>(mask, {head.b, i}) != 0;
    attend(head, to, {tokens, head.b, head.g, i, t_, kept});
  }
  ++t_;
}

void Decoding::attend(Head& head, const Outputs& to, const NextToken& token) {
  for (std::int64_t r = 0; r < R_; ++r)
    load_line(&q_[r * wide_D_], token.of.from.q, {head.b, head.g * R_ + r, token.i}, D_, rows_);
  if (token.kept) take_token(head, token);
  head.metric.renew(token);
  head.metric.write(to.metric, token);
  facts_.assign(std::size_t(R_), Facts{});
  if (head.cache.n == 0) {
    std::fill(o_.begin(), o_.end(), 0.0f);
    for (Facts& facts : facts_) facts.lse = -std::numeric_limits<float>::infinity();
  } else {
    fold(head);
    on_sums_ ? read_sums(head, token, to) : sweep(head, to);
  }
  write(to, token);
}

void Decoding::take_token(Head& head, const NextToken& token) {
  const Inputs& from = token.of.from;
  const metric::Index line{head.b, head.g, token.i};
  const bool changes = change_of(p_.how.metric).estimated;
  head.cache.append(token, rows_);
  if (p_.full) head.full.append(head.cache, whitening_);
  if (on_sums_) load_line(k_.data(), from.k, line, D_, rows_);
  if (on_sums_ || changes) load_line(v_.data(), from.v, line, p_.size.E, rows_);
  if (changes) {
    load_line(v_prev_.data(), from.v_prev, line, p_.size.E, rows_);
    head.metric.count_change(v_.data(), v_prev_.data());
  }
  if (p_.metric<Jacobian>())
    head.metric.count_jacobian(head.cache, q_.data(), wide_D_, jacobian_, isa_);
  if (std::holds_alternative<Decay>(p_.how.weighting)) head.sums.pass(token.t);
}

/// q' in `folded`, and with distances what their squares are multiplied with in `spread`.
void Decoding::fold(const Head& head) {
  if (p_.full) head.full.whiten(q_.data(), q_.data(), R_, wide_D_, whitening_);
  for (std::int64_t r = 0; r < R_; ++r) {
    const double* m = head.metric.of(r);
    for (std::int64_t d = 0; d < D_; ++d) {
      const std::int64_t at = r * wide_D_ + d;
      const double weight = m ? p_.c * m[d] : p_.c, q = double(q_[at]);
      const double folded = distances_ ? q : weight * q;
      folded_[at] = float(folded);
      spread_[at] = float(-0.5 * weight);
      if (!wide_) continue;
      wide_folded_[at] = folded;
      wide_spread_[at] = -0.5 * weight;
    }
    std::fill(&folded_[r * wide_D_] + D_, &folded_[r * wide_D_] + wide_D_, 0.0f);
  }
}

template <class T>
CachedScores<T> Decoding::scores(const Head& head, std::span<T> q, std::span<T> w) const {
  const DecodeCache& cache = head.cache;
  return {.s = s_.data(),
          .q = q.data(),
          .w = distances_ ? w.data() : nullptr,
          .bias = cache.biased ? cache.bias.data() : nullptr,
          .keys = cache.keys.data(),
          .line = cache.key_line,
          .R = R_,
          .n = cache.n,
          .D = D_,
          .q_step = wide_D_,
          .step = step_};
}

void Decoding::score(const Head& head) const {
  if (wide_) {
    rows_.score_wide(scores(head, wide_folded_, wide_spread_));
  } else {
    rows_.score(scores(head, folded_, spread_));
  }
}

void Decoding::sweep(const Head& head, const Outputs& to) {
  const DecodeCache& cache = head.cache;
  score(head);
  for (std::int64_t r = 0; r < R_; ++r) facts_[r] = weigh(head, r, asks_for_weights(to));
  rows_.gather({.o = o_.data(),
                .x = s_.data(),
                .values = cache.values.data(),
                .line = cache.value_line,
                .R = R_,
                .n = cache.n,
                .E = wide_E_,
                .step = step_});
}

void Decoding::read_sums(Head& head, const NextToken& token, const Outputs& to) {
  const RunningSums::Joining joins{k_.data(), v_.data()};
  head.sums.read(o_.data(), folded_.data(), token.kept ? &joins : nullptr, head.cache);
  for (std::int64_t r = 0; r < R_; ++r)
    facts_[r].by = head.sums.divisor(&folded_[r * wide_D_], head.cache.n);
  if (asks_for_weights(to)) look_at_weights(head, to);
}

void Decoding::write(const Outputs& to, const NextToken& token) {
  for (std::int64_t r = 0; r < R_; ++r) {
    const metric::Index at{token.b, token.g * R_ + r, token.i};
    const Facts& facts = facts_[r];
    float* o = &o_[r * wide_E_];
    for (std::int64_t e = 0; e < p_.size.E; ++e) o[e] = facts.by == 0 ? 0.0f : o[e] / facts.by;
    metric::store(to.o, at, o, p_.size.E);
    metric::store_one(to.lse, at, facts.lse);
    metric::store_one(to.concentration, at, facts.concentration);
    metric::store_one(to.effective_keys, at, facts.effective_keys);
    metric::store_one(to.entropy, at, facts.entropy);
    metric::store_one(to.largest, at, facts.largest);
    metric::store_one(to.largest_at, at, facts.largest_at);
  }
}

}  // namespace foci::cpu
