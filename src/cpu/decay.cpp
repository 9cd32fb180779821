// SPDX-License-Identifier: Apache-2.0
// Powers of the rate and what follows from positions alone: the sum of a row's powers, its squares
// and its entropy, each from the row before in one step.
#include "cpu/decay.hpp"

#include <cmath>
#include <limits>

namespace foci::cpu {

namespace {
constexpr double smallest = std::numeric_limits<float>::min();
}

Powers Powers::take(Arena& arena, const Problem& p, std::int64_t least) {
  Powers powers;
  std::int64_t size = p.longest_m;
  if (const auto* how = std::get_if<Decay>(&p.how.weighting)) {
    powers.rate = how->rate;
    const double most = powers.rate < 1 ? std::log(smallest) / std::log(powers.rate) : double(size);
    if (most < double(size)) size = std::int64_t(most) + 1;
  } else {
    size = least = 0;
  }
  powers.falling = arena.take<float>(std::max(size, least));
  return powers;
}

void Powers::fill() {
  double power = 1;
  for (std::size_t x = falling.size(); x-- > 0; power *= rate) {
    falling[x] = power < smallest ? 0.0f : float(power);
  }
}

const float* Powers::row(float* room, std::int64_t last, const std::int64_t* at,
                         std::int64_t count) const {
  const std::int64_t size = std::int64_t(falling.size()), gap = last - at[0];
  if (at[count - 1] - at[0] == count - 1 && gap < size) return falling.data() + (size - 1 - gap);
  for (std::int64_t j = 0; j < count; ++j) room[j] = of(last - at[j]);
  return room;
}

namespace {

/// Sums over the keys up to one of them, measured from it: powers, their squares, gap * power.
struct Sums {
  double rate, powers = 0, squares = 0, gaps = 0;
  std::int64_t seen = 0;

  void move_to(const Tokens& tokens, std::int64_t sees) {
    for (; seen < sees; ++seen) {
      const double gap = seen > 0 ? double(tokens.key_at[seen] - tokens.key_at[seen - 1]) : 0;
      const double by = gap == 1 ? rate : std::pow(rate, gap);
      gaps = by * (gaps + gap * powers);
      powers = by * powers + 1;
      squares = by * by * squares + 1;
    }
  }
};

}  // namespace

void decay_divisors(float* by, const Tokens& tokens, double rate) {
  Sums sums{rate};
  for (std::int64_t i = 0; i < tokens.at.N; ++i) {
    sums.move_to(tokens, tokens.sees[i]);
    by[i] = tokens.sees[i] > 0 ? float(sums.powers) : 1.0f;
  }
}

void decay_statistics(const Outputs& to, const Problem& p, const Tokens& tokens) {
  const double rate = std::get<Decay>(p.how.weighting).rate;
  Sums sums{rate};
  for (std::int64_t i = 0; i < tokens.at.N; ++i) {
    const std::int64_t n = tokens.sees[i];
    sums.move_to(tokens, n);
    const double W = sums.powers, effective = n > 0 ? W * W / sums.squares : 0;
    const double entropy = n > 0 ? std::log(W) - std::log(rate) * sums.gaps / W : 0;
    const std::int64_t largest = n == 0 ? -1 : tokens.key_at[rate < 1 ? n - 1 : 0];
    for (std::int64_t h = 0; h < p.size.H; ++h) {
      const metric::Index at{tokens.at.b, h, tokens.at.q0 + i};
      metric::store_one(to.concentration, at, n > 0 ? std::sqrt(effective / double(n)) : 0.0);
      metric::store_one(to.effective_keys, at, effective);
      metric::store_one(to.entropy, at, entropy);
      metric::store_one(to.largest, at, n > 0 ? 1 / W : 0.0);
      metric::store_one(to.largest_at, at, largest);
    }
  }
}

}  // namespace foci::cpu
