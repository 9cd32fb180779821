// SPDX-License-Identifier: Apache-2.0
// Attacks that an optimiser leads: SPSA, whose gradient is guessed from queries, and Carlini and
// Wagner's, which trades the distance against the margin.
#include "attack/problem.hpp"

#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

namespace foci::attack {
namespace {

constexpr std::uint64_t spsa_stream = 6;

/// Adam's moments, a row a sample.
struct Moments {
  at::Tensor first, second;
  int steps = 0;

  explicit Moments(const at::Tensor& like)
      : first(at::zeros_like(like)), second(at::zeros_like(like)) {}
  at::Tensor step(const at::Tensor& g, double rate) {
    ++steps;
    first = first * 0.9 + g * 0.1;
    second = second * 0.999 + g.square() * 0.001;
    const double one = 1 - std::pow(0.9, steps), two = 1 - std::pow(0.999, steps);
    return rate / one * first / ((second / two).sqrt() + 1e-8);
  }
};

/// The slope of the margin at x, from pairs of queries on either side; never of x itself moved.
at::Tensor guessed_slope(const Problem& problem, const at::Tensor& x, const Rows& rows,
                         const Spsa& how, const Stream& stream) {
  const std::int64_t R = x.size(0), pixels = x[0].numel();
  const std::int64_t each =
      std::clamp<std::int64_t>(problem.options().batch / (2 * R), 1, how.pairs);
  at::Tensor sum = at::zeros_like(x);
  for (std::int64_t pair = 0; pair < how.pairs; pair += each) {
    const std::int64_t count = std::min<std::int64_t>(each, how.pairs - pair);
    const at::Tensor turn = at::arange(pair, pair + count, rows.draw.options());
    const at::Tensor draws =
        (rows.draw.unsqueeze(0) + (turn.unsqueeze(1) + 1) * (std::int64_t{1} << 48)).flatten();
    const at::Tensor way = signs(stream, draws, pixels).view({count, R, pixels});
    const at::Tensor flat = x.flatten(1).unsqueeze(0);
    const auto value = [&](double by) {
      const at::Tensor at = (flat + by * way).view({count * R, x.size(1), x.size(2), x.size(3)});
      Rows beside = rows;
      beside.y = rows.y.repeat(count);
      if (rows.target.defined()) beside.target = rows.target.repeat(count);
      return margin(problem.logits(at), beside).view({count, R, 1});
    };
    sum += ((value(how.delta) - value(-how.delta)) * way).sum(0).view_as(x);
  }
  return sum / (2 * how.delta * how.pairs);
}

}  // namespace

void perturb(Problem& problem, const Spsa& how) {
  const Options& o = problem.options();
  problem.restart(1, [&](const Rows& begun) {
    const at::NoGradGuard without;
    Rows rows = begun;
    at::Tensor x = rows.x;
    Moments moments(x);
    for (int i = 0; i < how.iterations; ++i) {
      const Stream stream = problem.stream(spsa_stream).next(std::uint64_t(i));
      const at::Tensor slope = guessed_slope(problem, x, rows, how, stream);
      x = projected(x + moments.step(slope, how.rate), rows.x, o.norm, o.eps);
      const at::Tensor keep = problem.settle(problem.fooled(problem.logits(x), rows), x, rows);
      if (!keep.defined()) continue;
      if (keep.size(0) == 0) return;
      rows = selected(rows, keep);
      keep_rows(keep, x, moments.first, moments.second);
    }
  });
}

namespace {

/// Where the search stands: the constant of a row and its bounds.
struct Constants {
  at::Tensor now, low, high, hit;

  void keep(const at::Tensor& which) { keep_rows(which, now, low, high, hit); }
  /// Halves what is known; ten times as much where nothing was ever enough.
  void next() {
    high = at::where(hit, at::min(high, now), high);
    low = at::where(hit, low, at::max(low, now));
    now = at::where(high.lt(1e9), (low + high) / 2, now * 10);
    hit = at::zeros_like(hit);
  }
};

}  // namespace

void perturb(Problem& problem, const CarliniWagner& how) {
  const Options& o = problem.options();
  problem.restart(1, [&](const Rows& begun) {
    Rows rows = begun;
    const at::Tensor column = at::zeros_like(rows.y, rows.x.options());
    Constants c{at::full_like(column, how.constant), column, at::full_like(column, 1e10),
                column.gt(0)};
    for (int search = 0; search < how.searches; ++search, c.next()) {
      at::Tensor w = (rows.x * 2 - 1).mul_(0.999999).atanh();  // x = (tanh w + 1) / 2
      Moments moments(w);
      for (int i = 0; i < how.iterations; ++i) {
        const at::Tensor tanh = w.tanh(), x = (tanh + 1) / 2;
        const Gradient g = problem.gradient(x, rows, [&](const at::Tensor& z, const Rows& at) {
          return margin(z, at).clamp_max(how.confidence) * c.now;
        });
        const at::Tensor over = problem.fooled(g.logits, rows), d = x - rows.x;
        const at::Tensor near = length_of(d, Norm::l2).le(o.eps);
        const at::Tensor slope = (2 * d - g.by_pixel) * (1 - tanh.square()) / 2;
        w = w - moments.step(slope, how.rate);
        c.hit = c.hit.logical_or(over);
        const at::Tensor keep = problem.settle(over.logical_and(near), x, rows);
        if (!keep.defined()) continue;
        if (keep.size(0) == 0) return;
        rows = selected(rows, keep);
        c.keep(keep);
        keep_rows(keep, w, moments.first, moments.second);
      }
    }
  });
}

}  // namespace foci::attack
