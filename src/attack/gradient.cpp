// SPDX-License-Identifier: Apache-2.0
// The plain attacks: noise as a control, one step of the gradient, many of them.
#include "attack/problem.hpp"

#include <ATen/ops/zeros_like.h>

namespace foci::attack {
namespace {

enum : std::uint64_t { noise_stream = 1, pgd_stream = 2 };

/// The steepest way of length 1 under linf and l2; under l1 the gradient itself.
at::Tensor ascent(const at::Tensor& gradient, Norm norm) {
  return norm == Norm::linf ? gradient.sign() : unit(gradient, norm);
}

}  // namespace

void perturb(Problem& problem, const Noise& how) {
  const auto& [norm, eps] = std::pair(problem.options().norm, problem.options().eps);
  problem.restart(how.draws, [&](const Rows& rows) {
    const at::Tensor x = drawn_start(rows, problem.stream(noise_stream), norm, eps);
    problem.settle(problem.fooled(problem.logits(x), rows), x, rows);
  });
}

void perturb(Problem& problem, const Fgsm&) {
  const Options& o = problem.options();
  problem.restart(1, [&](const Rows& rows) {
    const Gradient g = problem.gradient(rows.x, rows, cross_entropy);
    const at::Tensor x =
        projected(rows.x + o.eps * ascent(g.by_pixel, o.norm), rows.x, o.norm, o.eps);
    problem.settle(problem.fooled(problem.logits(x), rows), x, rows);
  });
}

void perturb(Problem& problem, const Pgd& how) {
  const Options& o = problem.options();
  const double share = step_share(how, o.norm);
  problem.restart(how.restarts, [&](const Rows& begun) {
    Rows rows = begun;
    at::Tensor x = drawn_start(rows, problem.stream(pgd_stream), o.norm, o.eps);
    at::Tensor velocity = at::zeros_like(x);
    for (int i = 0; i <= how.steps; ++i) {
      const Gradient g = problem.gradient(x, rows, cross_entropy);
      at::Tensor way = g.by_pixel;
      if (how.momentum > 0) {  // of gradients whose mean size is 1
        velocity = how.momentum * velocity + unit(way, Norm::l1) * double(way[0].numel());
        way = velocity;
      }
      at::Tensor next = projected(x + share * o.eps * ascent(way, o.norm), rows.x, o.norm, o.eps);
      const at::Tensor keep = problem.settle(problem.fooled(g.logits, rows), x, rows);
      x = next;
      if (!keep.defined()) continue;
      if (keep.size(0) == 0) return;
      rows = selected(rows, keep);
      keep_rows(keep, x, velocity);
    }
  });
}

}  // namespace foci::attack
