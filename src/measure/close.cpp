// SPDX-License-Identifier: Apache-2.0
// Attention distance, the mass of the largest weights, how far heads are apart and rollout, from
// blocks of rows; the whole matrix is there only for rollout.
#include "measure/close.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace foci::measure {
namespace {

/// Which of the tokens [first, first + count) stand somewhere, and how far each is from each key.
struct Places {
  at::Tensor far;           // (count,M)
  at::Tensor stands, keys;  // (count), (M) bool
};

Places places_of(const Grid& grid, std::int64_t first, std::int64_t count, const at::Tensor& like) {
  const std::int64_t M = like.size(-1);
  const at::Tensor q = at::arange(first, first + count, like.options()) - double(grid.leading);
  const at::Tensor k = at::arange(M, like.options()) - double(grid.leading);
  if (grid.height == 0) {
    const auto all = [](const at::Tensor& x) { return x.ge(-INFINITY); };
    return {(q.unsqueeze(1) - k.unsqueeze(0)).abs(), all(q), all(k)};
  }
  const auto stands = [&](const at::Tensor& x) {
    return x.ge(0).logical_and(x.lt(double(grid.height * grid.width)));
  };
  const auto column = [&](const at::Tensor& x) { return x.remainder(double(grid.width)); };
  const auto row = [&](const at::Tensor& x) { return (x / double(grid.width)).floor(); };
  const auto between = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.unsqueeze(1) - b.unsqueeze(0)).square();
  };
  return {(between(row(q), row(k)) + between(column(q), column(k))).sqrt(), stands(q), stands(k)};
}

/// A mean over rows, of those rows alone that say something.
struct RowMeans {
  at::Tensor sum, count;

  void add(const at::Tensor& x, const at::Tensor& counts) {  // (B,H,rows)
    const at::Tensor wide = x.to(at::kDouble);
    const at::Tensor own = at::where(counts, wide, at::zeros_like(wide)).sum(-1);
    sum = sum.defined() ? sum + own : own;
    const at::Tensor n = counts.sum(-1);
    count = count.defined() ? count + n : n;
  }
  at::Tensor mean() const { return sum / count; }
};

/// The mean over heads of |vec(a_h) - vec(a_g)| from their products.
std::vector<double> distances_of(const at::Tensor& products) {
  const std::int64_t B = products.size(0), H = products.size(1);
  std::vector<double> all;
  if (H < 2) return std::vector<double>(std::size_t(B), 0.0);
  const at::Tensor own = products.diagonal(0, 1, 2);  // (B,H)
  const at::Tensor apart =
      (own.unsqueeze(1) + own.unsqueeze(2) - 2 * products).clamp_min(0).sqrt().sum({1, 2});
  for (std::int64_t b = 0; b < B; ++b) all.push_back(apart[b].item<double>() / double(H * (H - 1)));
  return all;
}

std::vector<double> rolled(const at::Tensor& step, at::Tensor& product, const at::Tensor& counts) {
  product = product.defined() ? at::matmul(step, product) : step;
  const at::Tensor keys = 1 / product.square().sum(-1).clamp_min(1e-30);  // (B,N)
  RowMeans mean;
  mean.add(keys, counts.any(1));
  std::vector<double> all;
  for (std::int64_t b = 0; b < keys.size(0); ++b) all.push_back(mean.mean()[b].item<double>());
  return all;
}

}  // namespace

Closely look_closely(const nn::Seen& call, const Look& how, at::Tensor& product) {
  const std::int64_t B = call.q.size(0), H = call.q.size(1), N = call.q.size(2), M = call.k.size(2);
  const Weights weights(call);
  RowMeans distance, top;
  at::Tensor products = at::zeros({B, H, H}, call.q.options().dtype(at::kDouble));
  at::Tensor step;
  if (how.rolls) step = at::zeros({B, N, N}, call.q.options().dtype(at::kFloat));
  for (std::int64_t i = 0; i < N; i += weights.block()) {
    const std::int64_t count = std::min(weights.block(), N - i);
    const at::Tensor a = weights.rows(i, count);  // (B,H,count,M), signed perhaps
    const at::Tensor size = a.abs(), counts = how.counts.narrow(2, i, count);
    const Places places = places_of(how.grid, i + M - N, count, size);
    const at::Tensor shown = size * places.keys.to(size.scalar_type());
    const at::Tensor mass = shown.sum(-1);
    const at::Tensor stands = counts.logical_and(places.stands).logical_and(mass.gt(0));
    distance.add((shown * places.far).sum(-1) / mass.clamp_min(1e-30), stands);
    const at::Tensor all = size.sum(-1);
    const at::Tensor most =
        std::get<0>(size.topk(std::min(how.top, M), -1, true, /*sorted=*/false)).sum(-1);
    top.add((most / all.clamp_min(1e-30)).clamp_max(1), counts.logical_and(all.gt(0)));
    const at::Tensor flat = a.flatten(2).to(at::kDouble);
    products += at::matmul(flat, flat.transpose(1, 2));
    if (how.rolls) {
      at::Tensor mean = size.mean(1).to(at::kFloat);  // (B,count,M)
      mean.diagonal(i, 1, 2).add_(1);
      step.narrow(1, i, count).copy_(mean / mean.sum(-1, true));
    }
  }
  Closely of{distance.mean(), top.mean(), distances_of(products), {}};
  if (how.rolls) of.rollout_keys = rolled(step, product, how.counts);
  return of;
}

std::vector<double> key_change(const at::Tensor& below, const at::Tensor& k,
                               const at::Tensor& mask) {
  const auto wide = [](const at::Tensor& x) { return x.detach().to(at::kDouble); };
  at::Tensor change = (wide(k) - wide(below)).abs(), size = wide(below).abs();
  if (mask.defined()) {
    const at::Tensor padding = mask.logical_not().unsqueeze(1).unsqueeze(3);
    change = change.masked_fill(padding, 0);
    size = size.masked_fill(padding, 0);
  }
  const at::Tensor above = change.flatten(1).sum(1), divisor = size.flatten(1).sum(1);
  std::vector<double> all;
  for (std::int64_t b = 0; b < k.size(0); ++b) {
    const double by = divisor[b].item<double>();
    all.push_back(by == 0 ? 0 : above[b].item<double>() / by);  // NaN stays NaN
  }
  return all;
}

}  // namespace foci::measure
