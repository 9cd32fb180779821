// SPDX-License-Identifier: Apache-2.0
// Square (Andriushchenko et al. 2020): a square of the image changes at random and stays where the
// margin shrinks. Where the squares lie is drawn once for all samples of a query.
#include "attack/square.hpp"

#include "attack/problem.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace foci::attack {

double covered(const Square& how, int query) {
  constexpr int halved[] = {10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000};
  const double at = how.rescale ? std::floor(double(query) / how.queries * 10000) : query;
  const auto after = [&](int bound) { return at > bound; };
  return how.share / double(1 << std::count_if(std::begin(halved), std::end(halved), after));
}

at::Tensor falling_off(std::int64_t rows, std::int64_t columns, Norm norm) {
  at::Tensor out = at::zeros({rows, columns});
  const std::int64_t rings = std::max(rows, columns) / 2 + 1;
  std::int64_t top = rows / 2, left = columns / 2;
  for (std::int64_t i = 0; i < rings; ++i, --top, --left) {
    const auto low = [](std::int64_t at) { return std::max<std::int64_t>(at, 0); };
    out.slice(0, low(top), std::min(top + 2 * i + 1, rows))
        .slice(1, low(left), std::min(left + 2 * i + 1, columns))
        .add_(std::pow(double(i + 1), norm == Norm::l1 ? -4 : -2));
  }
  return rows == 0 ? out : out / length_of(out.unsqueeze(0), norm);
}

namespace {

constexpr std::uint64_t square_stream = 5;

struct Window {
  std::int64_t top, left, side;
  at::Tensor of(const at::Tensor& x) const {
    return x.slice(2, top, top + side).slice(3, left, left + side);
  }
};

struct Search {
  const Options& o;
  Rows rows;
  at::Tensor best, gain;  // (R,C,H,W); the margin there
  Stream stream;

  std::int64_t height() const { return best.size(2); }
  std::int64_t width() const { return best.size(3); }
  std::int64_t channels() const { return best.size(1); }

  Window window(std::uint64_t draw, std::int64_t side) const {
    return {stream.below(draw, height() - side + 1), stream.below(draw + 1, width() - side + 1),
            side};
  }
  /// (R,C,1,1) of -1 and 1.
  at::Tensor row_signs(std::uint64_t draw) const {
    return signs(stream.next(draw), rows.draw, channels()).unsqueeze(2).unsqueeze(3);
  }
  /// (side,side): up on one half, down on the other, turned or not.
  at::Tensor pattern(std::int64_t side, std::uint64_t draw) const {
    const at::Tensor up = falling_off(side / 2, side, o.norm);
    const at::Tensor down = falling_off(side - side / 2, side, o.norm);
    at::Tensor both = at::cat({up, -down});
    both = both / length_of(both.unsqueeze(0), o.norm);
    if (stream.uniform(draw) > 0.5) both = both.t();
    return both.to(best.device()).contiguous();
  }
};

/// Stripes under linf, tiles of the pattern else.
at::Tensor begin(const Search& s) {
  const at::Tensor& x = s.rows.x;
  if (s.o.norm == Norm::linf) {
    const at::Tensor stripes = signs(s.stream.next(0), s.rows.draw, s.channels() * s.width())
                                   .view({-1, s.channels(), 1, s.width()});
    return projected(x + s.o.eps * stripes, x, s.o.norm, s.o.eps);
  }
  const std::int64_t side = std::max<std::int64_t>(s.height() / 5, 1);
  const std::int64_t edge = std::max<std::int64_t>((s.height() - 5 * side) / 2, 0);
  at::Tensor d = at::zeros_like(x);
  std::uint64_t draw = 100;
  for (std::int64_t top = edge; top + side <= s.height(); top += side) {
    for (std::int64_t left = edge; left + side <= s.width(); left += side, draw += 2)
      Window{top, left, side}.of(d).add_(s.pattern(side, draw) * s.row_signs(draw + 1));
  }
  if (s.o.norm == Norm::l2) d = unit(d, s.o.norm) * s.o.eps;
  return projected(x + d, x, s.o.norm, s.o.eps);
}

/// One window of delta takes over the length of another, with the pattern added to what it has.
at::Tensor exchanged(const Search& s, const Window& to, const Window& from, std::uint64_t draw) {
  const Norm norm = s.o.norm;
  const bool square = norm == Norm::l2;
  const at::Tensor d = s.best - s.rows.x;
  const auto size = [&](const at::Tensor& t) {  // (R,C,1,1), squared under l2
    return (square ? t.square() : t.abs()).sum({2, 3}, true);
  };
  const auto root = [&](const at::Tensor& t) { return square ? t.sqrt() : t; };
  at::Tensor rest = d.clone();
  to.of(rest).zero_();
  from.of(rest).zero_();
  const at::Tensor windows = size(d) - size(rest);
  const double reach = square ? s.o.eps * s.o.eps : s.o.eps;
  const at::Tensor unused = (reach - size(d).sum(1, true)).clamp_min_(0);
  const at::Tensor old = to.of(d);
  at::Tensor made =
      s.pattern(to.side, draw) * s.row_signs(draw + 1) + old / (root(size(old)) + 1e-12);
  made = made / (root(size(made)) + 1e-12) *
         root((unused / double(s.channels()) + windows.clamp_min(0)));
  to.of(rest).copy_(square ? made : made * double(s.channels()));
  if (square) rest = unit(rest, norm) * s.o.eps;
  return projected(s.rows.x + rest, s.rows.x, norm, s.o.eps);
}

/// A candidate of one query.
at::Tensor changed(const Search& s, const Square& how, int query) {
  const double pixels = double(s.height() * s.width());
  auto side = std::int64_t(std::lround(std::sqrt(covered(how, query) * pixels)));
  const std::int64_t most = std::min(s.height(), s.width());
  const std::uint64_t draw = 10000 + 100 * std::uint64_t(query);
  if (s.o.norm == Norm::linf) {
    const Window at = s.window(draw, std::clamp<std::int64_t>(side, 1, most));
    at::Tensor sign = at::zeros({1, s.channels(), 1, 1});
    for (std::int64_t c = 0; c < s.channels(); ++c)
      sign[0][c] = s.stream.uniform(draw + 2 + std::uint64_t(c)) < 0.5 ? -1 : 1;
    const at::Tensor clean = at.of(s.rows.x), old = at.of(s.best);
    at::Tensor x = s.best.clone();
    at.of(x).copy_(projected(old + 2 * s.o.eps * sign.to(x.device()), clean, s.o.norm, s.o.eps));
    return x;
  }
  side = std::max<std::int64_t>(side, 3);
  side = std::min(side + (side % 2 == 0 ? 1 : 0), most);
  return exchanged(s, s.window(draw, side), s.window(draw + 2, side), draw + 4);
}

}  // namespace

void perturb(Problem& problem, const Square& how) {
  problem.restart(how.restarts, [&](const Rows& begun) {
    const at::NoGradGuard without;
    Search s{problem.options(), begun, begun.x, {}, problem.stream(square_stream)};
    s.best = begin(s);
    at::Tensor logits = problem.logits(s.best);
    s.gain = margin(logits, s.rows);
    at::Tensor keep = problem.settle(problem.fooled(logits, s.rows), s.best, s.rows);
    for (int query = 0; query < how.queries; ++query) {
      if (keep.defined()) {
        if (keep.size(0) == 0) return;
        s.rows = selected(s.rows, keep);
        keep_rows(keep, s.best, s.gain);
      }
      const at::Tensor x = changed(s, how, query);
      logits = problem.logits(x);
      const at::Tensor gain = margin(logits, s.rows), better = gain.gt(s.gain);
      s.best = at::where(beside(better, x), x, s.best);
      s.gain = at::where(better, gain, s.gain);
      keep = problem.settle(problem.fooled(logits, s.rows), x, s.rows);
    }
  });
}

}  // namespace foci::attack
