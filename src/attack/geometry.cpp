// SPDX-License-Identifier: Apache-2.0
// Balls, boxes and planes. Sums that grow piecewise linearly are solved by sorting where they bend.
#include "attack/geometry.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace foci::attack {

at::Tensor length_of(const at::Tensor& x, Norm norm) {
  const at::Tensor rows = x.flatten(1);
  if (norm == Norm::linf) return rows.abs().amax(1);
  if (norm == Norm::l1) return rows.abs().sum(1);
  return rows.square().sum(1).sqrt_();
}

at::Tensor beside(const at::Tensor& column, const at::Tensor& x) {
  std::vector<std::int64_t> shape(std::size_t(x.dim()), 1);
  shape[0] = -1;
  return column.view(shape);
}

at::Tensor unit(const at::Tensor& x, Norm norm) {
  return x / beside(length_of(x, norm).add_(1e-12), x);
}

at::Tensor project_l1(const at::Tensor& x, const at::Tensor& d, double eps) {
  const at::Tensor size = d.abs();
  const at::Tensor room = at::where(d.gt(0), 1 - x, x).clamp_min_(0);
  // sum over i of clamp(size - cut, 0, room) falls with the cut: a coordinate begins to give way at
  // size - room and is gone at size.
  const at::Tensor begins = (size - room).clamp_min_(0);
  const auto [bends, order] = at::cat({begins, size}, 1).sort(1);
  const at::Tensor slopes =
      at::cat({at::ones_like(size), at::full_like(size, -1)}, 1).gather(1, order).cumsum(1);
  const at::Tensor gaps = bends.slice(1, 1) - bends.slice(1, 0, -1);
  const at::Tensor whole = at::min(size, room).sum(1, true);
  const at::Tensor sums =
      at::cat({whole, whole - (gaps * slopes.slice(1, 0, -1)).cumsum(1)}, 1);  // at each bend
  const at::Tensor last =
      sums.gt(eps).sum(1, true).sub_(1).clamp_(0, bends.size(1) - 1);  // still too much there
  const at::Tensor over = (sums.gather(1, last) - eps).clamp_min_(0);
  const at::Tensor cut = bends.gather(1, last) + over / slopes.gather(1, last).clamp_min_(1);
  const at::Tensor kept = at::min(
      (size - at::where(whole.gt(eps), cut, at::zeros({}, x.options()))).clamp_min_(0), room);
  return kept * d.sign();
}

at::Tensor projected(const at::Tensor& x, const at::Tensor& center, Norm norm, double eps) {
  if (norm == Norm::linf) return at::min(at::max(x, center - eps), center + eps).clamp_(0, 1);
  const at::Tensor d = x - center;
  if (norm == Norm::l1) {
    const at::Tensor flat = project_l1(center.flatten(1), d.flatten(1), eps);
    return (center + flat.view_as(d)).clamp_(0, 1);
  }
  const at::Tensor length = length_of(d, norm);
  const at::Tensor factor = length.clamp_max(eps) / (length + 1e-12);
  return d.mul(beside(factor, d)).add_(center).clamp_(0, 1);
}

namespace {

/// Under l1 the steepest coordinates go first, each as far as it can.
at::Tensor steepest_first(const at::Tensor& slope, const at::Tensor& room, const at::Tensor& gap) {
  const at::Tensor order = slope.argsort(1, /*descending=*/true);
  const at::Tensor w = slope.gather(1, order), m = room.gather(1, order);
  const at::Tensor gains = w * m;
  const at::Tensor left = gap - (gains.cumsum(1) - gains);  // before each coordinate
  const at::Tensor moves = at::min((left / w.clamp_min(1e-30)).clamp_min_(0), m);
  return at::zeros(slope.sizes(), slope.options()).scatter(1, order, moves);
}

}  // namespace

at::Tensor to_plane(const at::Tensor& t, const at::Tensor& w, const at::Tensor& b, Norm norm) {
  const at::Tensor off = (w * t).sum(1, true) - b.unsqueeze(1);
  const at::Tensor side = at::where(off.ge(0), at::ones_like(off), at::full_like(off, -1));
  const at::Tensor slope = w.abs(), down = (w * side).sign();  // moving along -down closes the gap
  const at::Tensor gap = off.abs();
  const at::Tensor room = at::where(down.gt(0), t, 1 - t).clamp_min_(0);
  if (norm == Norm::l1) return -down * steepest_first(slope, room, gap);
  // sum over i of slope min(speed reach, room) = gap, where a coordinate stops at room / speed.
  const at::Tensor speed = norm == Norm::linf ? at::ones_like(w) : slope;
  const auto [stops, order] = (room / speed.clamp_min(1e-30)).sort(1);
  const at::Tensor steep = slope.gather(1, order);
  const at::Tensor full = steep * room.gather(1, order), rate = steep * speed.gather(1, order);
  const at::Tensor before = full.cumsum(1) - full;                        // of those at a stop
  const at::Tensor moving = rate.sum(1, true) - (rate.cumsum(1) - rate);  // of the others
  const at::Tensor gains = before + moving * stops;                       // at each stop
  const at::Tensor first = gains.lt(gap).sum(1, true).clamp_max_(w.size(1) - 1);
  const at::Tensor reach =
      ((gap - before.gather(1, first)) / moving.gather(1, first).clamp_min_(1e-30)).clamp_min_(0);
  return -down * at::min(speed * reach, room);
}

}  // namespace foci::attack
