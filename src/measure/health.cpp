// SPDX-License-Identifier: Apache-2.0
// Whether a metric is still a geometry: how far from a circle it is, how much of it lies at 0, how
// it moves from layer to layer. Of a full metric its eigenvalues are looked at.
#include "measure/health.hpp"

#include <foci/error.hpp>

#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/log.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace foci::measure {
namespace {

constexpr double most_condition = 1e12, floor_share = 0.01;

/// Of (B,G): the mean over heads.
std::vector<double> by_sample(const at::Tensor& x) {
  const at::Tensor mean = x.to(at::kDouble).mean(1).cpu().contiguous();
  return {mean.data_ptr<double>(), mean.data_ptr<double>() + mean.numel()};
}

}  // namespace

Healths healths(const at::Tensor& metric, Extent extent) {
  const bool full = extent == Extent::full;
  if (!metric.defined() || metric.dim() < 4 || metric.numel() == 0) {
    throw InvalidArgument(fmt::format(
        "a metric of shape {}; it must be (batch, heads, queries, D), or full (batch, heads, D, D)",
        metric.defined() ? to_string(std::span(metric.sizes())) : "()"));
  }
  // Under prefix the last query, or chunk, has the metric that saw most.
  const bool lines = !full || metric.dim() == 5;
  const at::Tensor last = (lines ? metric.select(2, -1) : metric).detach().to(at::kDouble);
  const at::Tensor m = full ? at::linalg_eigvalsh(last).clamp_min(0) : last;  // (B,G,D)
  const at::Tensor most = m.amax(-1), least = m.amin(-1), mean = m.mean(-1);
  const at::Tensor nothing = mean.le(0), safe = at::where(nothing, mean.new_ones({}), mean);
  const auto where_some = [&](const at::Tensor& x, double otherwise) {
    return at::where(nothing, x.new_full({}, otherwise), x);
  };
  const at::Tensor p = m / m.sum(-1, true).clamp_min(1e-300);
  const at::Tensor entropy =
      -at::where(p.gt(0), p * p.clamp_min(1e-300).log(), p.new_zeros({})).sum(-1);
  const auto D = double(m.size(-1));
  Healths of;
  of.least = least.min().item<double>();
  of.most = most.max().item<double>();
  const at::Tensor variation = (m - mean.unsqueeze(-1)).square().mean(-1).sqrt() / safe;
  const at::Tensor condition = most / at::max(least, most / most_condition);
  const at::Tensor floor = m.lt(floor_share * most.unsqueeze(-1)).to(at::kDouble).mean(-1);
  of.means = {by_sample(mean),
              by_sample(where_some(variation, 0)),
              by_sample(where_some(most / safe, 1)),
              by_sample(where_some(condition, 1)),
              by_sample(D < 2 ? at::ones_like(mean) : where_some(entropy / std::log(D), 1)),
              by_sample(floor)};
  of.typical = last.sum(0);
  return of;
}

Health health(const at::Tensor& metric, Extent extent) {
  const Healths each = healths(metric, extent);
  const auto samples = double(each.means[0].size());
  Health of;
  of.least = each.least;
  of.most = each.most;
  for (std::size_t i = 0; i < health_means.size(); ++i) {
    of.*health_means[i] =
        std::accumulate(each.means[i].begin(), each.means[i].end(), 0.0) / samples;
  }
  of.typical = each.typical / samples;
  return of;
}

double drift(const at::Tensor& from, const at::Tensor& to) {
  if (!from.defined() || !to.defined() || from.sizes() != to.sizes()) return 0;
  const double size = from.to(at::kDouble).norm().item<double>();
  return size > 0 ? (to - from).to(at::kDouble).norm().item<double>() / size : 0;
}

}  // namespace foci::measure
