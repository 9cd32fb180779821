// SPDX-License-Identifier: Apache-2.0
// FAB (Croce and Hein 2020): steps onto the linearised boundary, biased towards the clean image.
// A row ends as soon as it is fooled within eps, for no smaller distance counts for more.
#include "attack/problem.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/autograd.h>

namespace foci::attack {
namespace {

constexpr std::uint64_t fab_stream = 4;

/// The boundary near x: `off` (R) is how far the other class is behind, `slope` (R,...) its way.
struct Boundary {
  at::Tensor off, slope;
};

Boundary towards(const Problem& problem, const at::Tensor& x, const Rows& rows,
                 const at::Tensor& classes) {
  const Gradient g = problem.gradient(x, rows, [&](const at::Tensor& logits, const Rows& at) {
    const auto of = [&](const at::Tensor& k) {
      return logits.gather(1, k.unsqueeze(1)).squeeze(1);
    };
    return of(classes) - of(at.y);
  });
  return {g.loss, g.by_pixel};
}

/// The boundaries of every class at x: one pass forward serves all of them, unless passes of a
/// random model are averaged.
class Boundaries {
 public:
  Boundaries(const Problem& problem, const at::Tensor& x, const Rows& rows)
      : problem_(problem), rows_(rows), from_(x.detach().requires_grad_()) {
    const at::AutoGradMode with(true);
    const at::Tensor logits = problem.source()(from_);
    gaps_ = logits - logits.gather(1, rows.y.unsqueeze(1));
  }
  std::int64_t classes() const { return gaps_.size(1); }
  Boundary of(std::int64_t k) const {
    if (problem_.options().eot > 1)
      return towards(problem_, from_, rows_, at::full_like(rows_.y, k));
    const at::AutoGradMode with(true);
    const at::Tensor off = gaps_.select(1, k);
    return {off.detach(), torch::autograd::grad({off.sum()}, {from_}, {}, true)[0].nan_to_num()};
  }

 private:
  const Problem& problem_;
  const Rows& rows_;
  at::Tensor from_, gaps_;
};

/// That of the class whose boundary is nearest.
Boundary towards_nearest(const Problem& problem, const at::Tensor& x, const Rows& rows) {
  const Norm norm = problem.options().norm;
  const Norm dual = norm == Norm::linf ? Norm::l1 : norm == Norm::l1 ? Norm::linf : Norm::l2;
  const Boundaries all(problem, x, rows);
  Boundary nearest;
  at::Tensor least;
  for (std::int64_t k = 0; k < all.classes(); ++k) {
    const Boundary b = all.of(k);
    const at::Tensor far = b.off.abs() / (length_of(b.slope, dual) + 1e-12);
    const at::Tensor way = at::where(rows.y.eq(k), far.new_full({}, 1e30), far);
    if (k == 0) {
      nearest = b;
      least = way;
      continue;
    }
    const at::Tensor nearer = way.lt(least);
    nearest.off = at::where(nearer, b.off, nearest.off);
    nearest.slope = at::where(beside(nearer, x), b.slope, nearest.slope);
    least = at::min(way, least);
  }
  return nearest;
}

/// One step from x, the clean images being x0.
at::Tensor crossed(const at::Tensor& x, const at::Tensor& x0, const Boundary& b, Norm norm,
                   const Fab& how) {
  const at::Tensor w = b.slope.flatten(1), here = x.flatten(1), clean = x0.flatten(1);
  const at::Tensor level = (w * here).sum(1) - b.off;
  const at::Tensor d =
      to_plane(at::cat({here, clean}), at::cat({w, w}), at::cat({level, level}), norm);
  const at::Tensor length = length_of(d, norm).clamp_min_(1e-8);
  const std::int64_t rows = x.size(0);
  const at::Tensor a1 = length.slice(0, 0, rows), a2 = length.slice(0, rows);
  const at::Tensor alpha = beside((a1 / (a1 + a2)).clamp_(0, how.alpha_max), x);
  const at::Tensor from_here = x + how.eta * d.slice(0, 0, rows).view_as(x);
  const at::Tensor from_clean = x0 + how.eta * d.slice(0, rows).view_as(x);
  return (from_here * (1 - alpha) + from_clean * alpha).clamp_(0, 1);
}

}  // namespace

void perturb(Problem& problem, const Fab& how) {
  const Options& o = problem.options();
  const auto work = [&](const Rows& begun) {
    Rows rows = begun;
    at::Tensor x = rows.x;
    if (how.restarts > 1) {  // the first begins at the image itself
      const at::Tensor drawn = drawn_start(rows, problem.stream(fab_stream), o.norm, o.eps);
      const at::Tensor half = (rows.x + (drawn - rows.x) * 0.5);
      x = at::where(beside(rows.restart.gt(0), x), half, x);
    }
    for (int i = 0; i < how.iterations; ++i) {
      const Boundary b = rows.target.defined() ? towards(problem, x, rows, rows.target)
                                               : towards_nearest(problem, x, rows);
      x = crossed(x, rows.x, b, o.norm, how);
      const at::Tensor over = problem.fooled(problem.logits(x), rows);
      const at::Tensor near = length_of(x - rows.x, o.norm).le(o.eps);
      const at::Tensor keep = problem.settle(over.logical_and(near), x, rows);
      x = at::where(beside(over, x), rows.x + (x - rows.x) * how.beta, x);
      if (!keep.defined()) continue;
      if (keep.size(0) == 0) return;
      rows = selected(rows, keep);
      keep_rows(keep, x);
    }
  };
  if (how.targets > 0) return problem.aim(how.targets, how.restarts, work);
  problem.restart(how.restarts, work);
}

}  // namespace foci::attack
