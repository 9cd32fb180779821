// SPDX-License-Identifier: Apache-2.0
// Auto-PGD (Croce and Hein 2020, 2021): a step that halves where the loss no longer grows,
// momentum, and a way back to the best point. Under l1 sparse steps instead.
#include "attack/apgd.hpp"

#include "attack/problem.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

namespace foci::attack {

Checks::Checks(int iterations, Norm norm)
    : n_(iterations),
      sparse_(norm == Norm::l1),
      period_(std::max(int((sparse_ ? 0.04 : 0.22) * iterations), 1)) {}

int Checks::after_a_step() {
  if (++since_ < period_) return 0;
  const int passed = period_;
  since_ = 0;
  if (!sparse_)
    period_ = std::max(period_ - std::max(int(0.03 * n_), 1), std::max(int(0.06 * n_), 1));
  return passed;
}

namespace {

constexpr std::uint64_t apgd_stream = 3;

/// One ball and so many steps; only where `settles` do fooled rows end.
struct Stage {
  double eps;
  int iterations;
  bool settles;
};

/// Every tensor has a row for each of `rows`.
struct Climb {
  Rows rows;
  at::Tensor x, before, gradient;             // here, one step ago
  at::Tensor best, best_gradient, best_loss;  // with the largest loss
  at::Tensor checked_loss, last_loss;         // best at the last check; one step ago
  at::Tensor rises, reduced;                  // (R) steps that raised the loss; step was halved
  at::Tensor step;                            // (R)
  at::Tensor share, spread;                   // l1: of pixels that move; pixels that did

  void keep(const at::Tensor& which) {
    rows = selected(rows, which);
    keep_rows(which, x, before, gradient, best, best_gradient, best_loss, checked_loss, last_loss,
              rises, reduced, step);
    if (share.defined()) keep_rows(which, share, spread);
  }
};

at::Tensor moved_pixels(const at::Tensor& d) { return d.ne(0).flatten(1).sum(1).to(at::kFloat); }

at::Tensor sparse_sign(const Climb& c) {
  const at::Tensor size = c.gradient.abs().flatten(1);
  const std::int64_t count = size.size(1);
  const at::Tensor place =
      ((1 - c.share) * double(count)).clamp(0, double(count - 1)).to(at::kLong).unsqueeze(1);
  const at::Tensor least = std::get<0>(size.sort(1)).gather(1, place);
  const at::Tensor sign =
      at::where(size.ge(least), c.gradient.flatten(1).sign(), at::zeros_like(size));
  return (sign / (sign.abs().sum(1, true) + 1e-10)).view_as(c.gradient);
}

at::Tensor stepped(const Climb& c, Norm norm, double eps, bool first) {
  const at::Tensor length = beside(c.step, c.x);
  if (norm == Norm::l1) return projected(c.x + length * sparse_sign(c), c.rows.x, norm, eps);
  const at::Tensor way = norm == Norm::linf ? c.gradient.sign() : unit(c.gradient, norm);
  const at::Tensor plain = projected(c.x + length * way, c.rows.x, norm, eps);
  const double a = first ? 1.0 : 0.75;
  return projected(c.x + (plain - c.x) * a + (c.x - c.before) * (1 - a), c.rows.x, norm, eps);
}

/// Back to the best point where `which`.
void go_back(Climb& c, const at::Tensor& which) {
  const at::Tensor column = beside(which, c.x);
  c.x = at::where(column, c.best, c.x);
  c.gradient = at::where(column, c.best_gradient, c.gradient);
}

void check_step(Climb& c, int since, double rho) {
  const at::Tensor stuck =
      c.rises.le(since * rho)
          .logical_or_(c.reduced.logical_not().logical_and_(c.checked_loss.ge(c.best_loss)));
  c.reduced = stuck;
  c.checked_loss = c.best_loss;
  c.rises = at::zeros_like(c.rises);
  c.step = at::where(stuck, c.step / 2, c.step);
  go_back(c, stuck);
}

void check_spread(Climb& c, double eps) {
  const at::Tensor now = moved_pixels(c.best - c.rows.x);
  const at::Tensor fewer = (now / c.spread).lt(0.95);
  c.share = now / double(c.x[0].numel()) / 1.5;
  c.step =
      at::where(fewer, at::full({}, eps, c.step.options()), c.step / 1.5).clamp_(eps / 10, eps);
  c.spread = now;
  go_back(c, fewer);
}

/// Begins at `start`; gives the best points, or nothing where all rows ended.
at::Tensor climb(Problem& problem, const Apgd& how, const RowLoss& loss, const Rows& rows,
                 const at::Tensor& start, const Stage& stage, bool drawn) {
  const Norm norm = problem.options().norm;
  const int n = stage.iterations;
  const bool sparse = norm == Norm::l1;
  Gradient g = problem.gradient(start, rows, loss);
  Climb c{rows,
          start,
          start,
          g.by_pixel,
          start,
          g.by_pixel,
          g.loss,
          g.loss,
          at::zeros_like(g.loss),
          at::zeros_like(g.loss),
          at::ones_like(g.loss, g.loss.options().dtype(at::kBool)),
          at::full_like(g.loss, (sparse ? 1 : 2) * stage.eps),
          {},
          {}};
  if (sparse) {
    const double pixels = double(start[0].numel());
    const at::Tensor moved = moved_pixels(start - rows.x);
    c.share = drawn ? at::full_like(moved, 0.2) : moved / pixels / 1.5;
    c.spread = drawn ? at::full_like(moved, pixels) : moved;
  }
  const auto settle = [&] {
    if (!stage.settles) return true;
    const at::Tensor keep = problem.settle(problem.fooled(g.logits, c.rows), c.x, c.rows);
    if (!keep.defined()) return true;
    if (keep.size(0) > 0) c.keep(keep);
    return keep.size(0) > 0;
  };
  if (!settle()) return {};
  Checks checks(n, norm);
  for (int i = 0; i < n; ++i) {
    const at::Tensor next = stepped(c, norm, stage.eps, i == 0);
    c.before = c.x;
    c.x = next;
    g = problem.gradient(c.x, c.rows, loss);
    c.gradient = g.by_pixel;
    const at::Tensor better = g.loss.gt(c.best_loss), column = beside(better, c.x);
    c.best = at::where(column, c.x, c.best);
    c.best_gradient = at::where(column, c.gradient, c.best_gradient);
    c.best_loss = at::where(better, g.loss, c.best_loss);
    c.rises = c.rises + g.loss.gt(c.last_loss);
    c.last_loss = g.loss;
    if (!settle()) return {};
    const int since = checks.after_a_step();
    if (since == 0) continue;
    if (sparse) {
      check_spread(c, stage.eps);
    } else {
      check_step(c, since, how.rho);
    }
  }
  return c.best;
}

}  // namespace

void perturb(Problem& problem, const Apgd& how) {
  const Norm norm = problem.options().norm;
  const double eps = problem.options().eps;
  const RowLoss loss = [&](const at::Tensor& logits, const Rows& rows) {
    if (how.loss == Loss::ce) return cross_entropy(logits, rows);
    return rows.target.defined() ? difference_of_logits(logits, rows.y, rows.target)
                                 : difference_of_logits(logits, rows.y);
  };
  const auto work = [&](const Rows& rows) {
    const Stream stream = problem.stream(apgd_stream + 10 * std::uint64_t(how.loss));
    if (norm != Norm::l1 || !how.larger) {
      const at::Tensor start = drawn_start(rows, stream, norm, eps);
      climb(problem, how, loss, rows, start, {eps, how.iterations, true}, true);
      return;
    }
    const int part = int(std::ceil(0.3 * how.iterations));
    at::Tensor x = drawn_start(rows, stream, norm, 3 * eps);
    x = climb(problem, how, loss, rows, x, {3 * eps, part, false}, false);
    x = projected(x, rows.x, norm, 2 * eps);
    x = climb(problem, how, loss, rows, x, {2 * eps, part, false}, false);
    x = projected(x, rows.x, norm, eps);
    climb(problem, how, loss, rows, x, {eps, how.iterations - 2 * part, true}, false);
  };
  if (how.loss == Loss::targeted) return problem.aim(how.targets, how.restarts, work);
  problem.restart(how.restarts, work);
}

}  // namespace foci::attack
