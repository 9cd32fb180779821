// SPDX-License-Identifier: Apache-2.0
// Rows, gradients, losses, and what becomes of rows that are fooled.
#include "attack/problem.hpp"

#include <foci/error.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>

namespace foci::attack {

Rows selected(const Rows& rows, const at::Tensor& keep) {
  const auto of = [&](const at::Tensor& t) { return t.defined() ? t.index_select(0, keep) : t; };
  return {of(rows.x), of(rows.y), of(rows.owner), of(rows.draw), of(rows.restart), of(rows.target)};
}

Problem::Problem(const Model& model, const Options& options, Rows rows)
    : model_(model),
      options_(options),
      rows_(std::move(rows)),
      goals_(rows_.target),
      done_(at::zeros({rows_.size()}, rows_.y.options().dtype(at::kBool))),
      images_(rows_.x.clone()) {}

Rows Problem::turned(const at::Tensor& turns, int restarts, bool aimed) {
  const Rows rows = selected(rows_, done_.logical_not().nonzero().squeeze(1));
  const auto repeated = [&](const at::Tensor& t) {
    std::vector<std::int64_t> times(std::size_t(t.dim()), 1);
    times[0] = turns.size(0);
    return times[0] == 1 ? t : t.repeat(times);
  };
  const at::Tensor turn = turns.repeat_interleave(rows.size());  // (R)
  Rows all{repeated(rows.x), repeated(rows.y), repeated(rows.owner), {}, {}, {}};
  all.draw = repeated(rows.draw) + turn * (std::int64_t{1} << 40);
  all.restart = turn.remainder(restarts);
  if (goals_.defined()) {
    all.target = repeated(rows.target);
  } else if (aimed) {
    const at::Tensor rank = turn.div(restarts, "floor") + 1;
    all.target = order_.index_select(0, all.owner).gather(1, rank.unsqueeze(1)).squeeze(1);
  }
  return all;
}

void Problem::in_turns(int turns, int restarts, bool aimed, const Work& work) {
  for (int first = 0; first < turns;) {
    const std::int64_t left = done_.size(0) - done_.sum().item<std::int64_t>();
    if (left == 0) return;
    const std::int64_t fit = std::max<std::int64_t>(1, options_.batch / left);
    const int end = int(std::min<std::int64_t>(first + fit, turns));
    work(turned(at::arange(first, end, rows_.y.options()), restarts, aimed));
    first = end;
  }
}

void Problem::restart(int times, const Work& work) { in_turns(times, times, false, work); }

void Problem::aim(int targets, int restarts, const Work& work) {
  if (goals_.defined()) return restart(restarts, work);
  order_ = logits(rows_.x).argsort(1, /*descending=*/true);
  const int others = int(std::min<std::int64_t>(targets, order_.size(1) - 1));
  in_turns(others * restarts, restarts, true, work);
}

at::Tensor Problem::logits(const at::Tensor& x) const {
  const at::NoGradGuard without;
  return model_(x);
}

Gradient Problem::gradient(const at::Tensor& x, const Rows& rows, const RowLoss& loss) const {
  Gradient out;
  const at::AutoGradMode with(true);
  for (int i = 0; i < options_.eot; ++i) {
    const at::Tensor from = x.detach().requires_grad_();
    const at::Tensor logits = source()(from), each = loss(logits, rows);
    const at::Tensor by = torch::autograd::grad({each.sum()}, {from}, {}, {}, false, true)[0];
    if (by.defined()) out.by_pixel = out.by_pixel.defined() ? out.by_pixel + by : by;
    out.logits = logits.detach();
    out.loss = each.detach();
  }
  if (!out.by_pixel.defined()) out.by_pixel = at::zeros_like(x);
  if (options_.eot > 1) out.by_pixel = out.by_pixel / double(options_.eot);
  out.by_pixel = out.by_pixel.nan_to_num(0, 0, 0);
  if (options_.surrogate) out.logits = logits(x);
  return out;
}

at::Tensor Problem::fooled(const at::Tensor& logits, const Rows& rows) const {
  const at::Tensor said = logits.argmax(1);
  return goals_.defined() ? said.eq(rows.target) : said.ne(rows.y);
}

at::Tensor Problem::settle(const at::Tensor& fooled, const at::Tensor& x, const Rows& rows) {
  const at::Tensor hit = fooled.nonzero().squeeze(1);
  if (hit.size(0) == 0) return {};
  const at::Tensor owner = rows.owner.index_select(0, hit);
  done_.index_fill_(0, owner, true);
  images_.index_copy_(0, owner, x.detach().index_select(0, hit));
  return done_.index_select(0, rows.owner).logical_not_().nonzero().squeeze(1);
}

Found Problem::found(const at::Tensor& samples) const {
  const at::Tensor hit = done_.nonzero().squeeze(1);
  if (hit.size(0) == 0) return {hit, images_.index_select(0, hit), 0};
  const Rows rows = selected(rows_, hit);
  const at::Tensor images = images_.index_select(0, hit);
  const double reach = options_.eps * (1 + 1e-4) + 1e-6;  // rounding of x + d
  const at::Tensor inside = images.ge(0).logical_and_(images.le(1)).flatten(1).all(1);  // NaN: no
  const at::Tensor sound = inside.logical_and(length_of(images - rows.x, options_.norm).le(reach));
  const at::Tensor holds = sound.logical_and(fooled(logits(images), rows)).nonzero().squeeze(1);
  return {samples.index_select(0, hit).index_select(0, holds), images.index_select(0, holds),
          sound.logical_not().sum().item<std::int64_t>()};
}

at::Tensor cross_entropy(const at::Tensor& logits, const Rows& rows) {
  if (rows.target.defined())
    return -at::cross_entropy_loss(logits, rows.target, {}, at::Reduction::None);
  return at::cross_entropy_loss(logits, rows.y, {}, at::Reduction::None);
}

namespace {

at::Tensor at_class(const at::Tensor& logits, const at::Tensor& y) {
  return logits.gather(1, y.unsqueeze(1)).squeeze(1);
}

/// The largest but that of y.
at::Tensor best_other(const at::Tensor& logits, const at::Tensor& y) {
  return logits.scatter(1, y.unsqueeze(1), -std::numeric_limits<float>::infinity()).amax(1);
}

}  // namespace

at::Tensor margin(const at::Tensor& logits, const Rows& rows) {
  const at::Tensor& y = rows.target.defined() ? rows.target : rows.y;
  const at::Tensor ahead = at_class(logits, y) - best_other(logits, y);
  return rows.target.defined() ? ahead : -ahead;
}

at::Tensor difference_of_logits(const at::Tensor& logits, const at::Tensor& y) {
  const at::Tensor ahead = at_class(logits, y) - best_other(logits, y);
  if (logits.size(1) < 3) return -ahead;
  const at::Tensor top = std::get<0>(logits.topk(3, 1));
  return -ahead / (top.select(1, 0) - top.select(1, 2) + 1e-12);
}

at::Tensor difference_of_logits(const at::Tensor& logits, const at::Tensor& y,
                                const at::Tensor& target) {
  const at::Tensor ahead = at_class(logits, y) - at_class(logits, target);
  if (logits.size(1) < 4) return -ahead;
  const at::Tensor top = std::get<0>(logits.topk(4, 1));
  const at::Tensor middle = (top.select(1, 2) + top.select(1, 3)) * 0.5;
  return -ahead / (top.select(1, 0) - middle + 1e-12);
}

at::Tensor drawn_start(const Rows& rows, const Stream& stream, Norm norm, double eps) {
  const std::int64_t count = rows.x[0].numel();
  const at::Tensor drawn = norm == Norm::linf ? uniform(stream, rows.draw, count).mul_(2).sub_(1)
                                              : normal(stream, rows.draw, count);
  const at::Tensor d = drawn.view_as(rows.x).to(rows.x.scalar_type());
  if (norm == Norm::l1) return projected(rows.x + d, rows.x, norm, eps);
  return unit(d, norm).mul_(eps).add_(rows.x).clamp_(0, 1);
}

}  // namespace foci::attack
