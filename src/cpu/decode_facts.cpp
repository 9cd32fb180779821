// SPDX-License-Identifier: Apache-2.0
// A decoder's rows of weights: from scores, or for statistics alone where the output came from
// running sums; and what they tell.
#include "cpu/decode.hpp"

#include <cmath>
#include <limits>

namespace foci::cpu {

namespace {

constexpr float nothing = -std::numeric_limits<float>::infinity();

/// The first |x| that is `size`, or the first NaN where that is NaN; a row has one or the other.
std::int64_t first_of(const float* x, float size, std::int64_t n) {
  std::int64_t j = 0;
  while (j + 1 < n && (std::isnan(size) ? !std::isnan(x[j]) : std::abs(x[j]) != size)) ++j;
  return j;
}

/// -sum a ln a of a = x / sum x, every x >= 0; 0 where all are.
float entropy_of(const float* x, std::int64_t n) {
  double sum = 0, entropy = 0;
  for (std::int64_t j = 0; j < n; ++j) sum += double(x[j]);
  for (std::int64_t j = 0; j < n && sum != 0; ++j) {
    const double a = double(x[j]) / sum;
    if (a != 0) entropy -= a * std::log(a);
  }
  return float(entropy);
}

}  // namespace

void Decoding::concentrate(Facts& facts, double sum, double squares, std::int64_t n) {
  const double concentration = sum / std::sqrt(double(n) * squares);
  facts.concentration = float(concentration);
  facts.effective_keys = float(double(n) * concentration * concentration);
}

/// x becomes e^(x - top): softmax, and decay without content, whose powers are such exponentials.
Decoding::Facts Decoding::softmax(const Head& head, float* x, bool statistics) const {
  const std::int64_t n = head.cache.n;
  const Exponentials of = rows_.exponentiate(x, n, statistics);
  Facts facts;
  facts.by = of.sum;
  facts.lse = of.sum == 0 ? nothing : float(double(of.top) + std::log(double(of.sum)));
  if (!statistics) return facts;
  facts.largest_at = head.cache.at[of.at];
  if (of.sum == 0) return facts;
  concentrate(facts, of.sum, of.squares, n);
  facts.entropy = float(std::log(double(of.sum)) - double(of.scored) / double(of.sum));
  facts.largest = 1 / of.sum;
  return facts;
}

/// What `by` and the row x tell.
void Decoding::measure(Facts& facts, const Head& head, const float* x) const {
  const std::int64_t n = head.cache.n;
  const Sizes of = rows_.measure(x, n);
  const float largest = std::isnan(of.sum) ? float(of.sum) : of.largest;
  facts.largest_at = head.cache.at[first_of(x, largest, n)];
  const bool sums_to_one = std::holds_alternative<Linear>(p_.how.weighting);
  const double by = sums_to_one ? of.sum : double(facts.by);
  facts.largest = by == 0 ? 0.0f : float(double(largest) / by);
  if (largest == 0) return;
  concentrate(facts, of.sum, of.squares, n);
}

/// Scores of head r become weights, up to a divisor.
Decoding::Facts Decoding::weigh(const Head& head, std::int64_t r, bool statistics) const {
  float* x = &s_[r * step_];
  const std::int64_t n = head.cache.n;
  const Weighting& weighting = p_.how.weighting;
  if (std::holds_alternative<Softmax>(weighting)) return softmax(head, x, statistics);
  const auto* relu2 = std::get_if<Relu2>(&weighting);
  const auto* identity = std::get_if<Identity>(&weighting);
  Facts facts;
  if (relu2) rows_.square_positive(x, n);
  if (relu2 || identity) {
    const Rescale how = relu2 ? relu2->rescale : identity->rescale;
    facts.by = how == Rescale::length ? float(n) : 1.0f;
    if (how == Rescale::l1 || how == Rescale::l2) {
      const Sizes of = rows_.measure(x, n);
      const float by = float(how == Rescale::l1 ? of.sum : std::sqrt(of.squares));
      if (by != 0)
        rows_.divide(x, by, n);  // before the values, so that neither leaves the range of a float
      facts.by = by == 0 ? 0.0f : 1.0f;
    }
  } else {
    rows_.fade(x, head.cache.at.data(), head.sums.last(), head.sums.slope(), n);
    facts.by = head.sums.divisor(nullptr, n);
  }
  if (statistics) measure(facts, head, x);
  return facts;
}

/// The weights behind running sums, for what they tell.
void Decoding::look_at_weights(const Head& head, const Outputs& to) {
  const DecodeCache& cache = head.cache;
  const bool linear = std::holds_alternative<Linear>(p_.how.weighting);
  const bool positions = !linear && !cache.what.keys;
  if (linear) {
    head.sums.similarities(s_.data(), folded_.data(), panel_.data(), cache);
  } else if (!positions) {
    score(head);
  }
  for (std::int64_t r = 0; r < R_; ++r) {
    float* x = &s_[r * step_];
    if (positions) {
      for (std::int64_t j = 0; j < cache.n; ++j)
        x[j] = head.sums.slope() * float(head.sums.last() - cache.at[j]);
      const float by = facts_[r].by;
      facts_[r] = softmax(head, x, true);
      facts_[r].by = by;
      continue;
    }
    if (std::holds_alternative<Decay>(p_.how.weighting))
      rows_.fade(x, cache.at.data(), head.sums.last(), head.sums.slope(), cache.n);
    measure(facts_[r], head, x);
    if (linear && to.entropy) facts_[r].entropy = entropy_of(x, cache.n);
  }
}

}  // namespace foci::cpu
