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

OfRows no_rows(const at::Tensor& like) {
  return {at::zeros(like.sizes(), like.options().dtype(at::kDouble)), at::zeros_like(like)};
}

void set(OfRows& of, std::int64_t first, const at::Tensor& x, const at::Tensor& counts) {
  const std::int64_t count = counts.size(2);
  of.rows.narrow(2, first, count).copy_(x);
  of.counts.narrow(2, first, count).copy_(counts);
}

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
  const at::Tensor mean = OfRows{keys.to(at::kDouble), counts.any(1)}.means();
  std::vector<double> all;
  for (std::int64_t b = 0; b < keys.size(0); ++b) all.push_back(mean[b].item<double>());
  return all;
}

}  // namespace

at::Tensor OfRows::means() const {
  return at::where(counts, rows, at::zeros_like(rows)).sum(-1) / counts.sum(-1);
}

Closely look_closely(const nn::Seen& call, const Look& how, at::Tensor& product) {
  const std::int64_t B = call.q.size(0), H = call.q.size(1), N = call.q.size(2), M = call.k.size(2);
  const Weights weights(call);
  const bool every = how.rolls || how.looked >= N;
  const std::int64_t looked = every ? N : how.looked;
  Closely of{looked, no_rows(how.counts), no_rows(how.counts), {}, {}};
  at::Tensor products = at::zeros({B, H, H}, call.q.options().dtype(at::kDouble));
  at::Tensor step;
  if (how.rolls) step = at::zeros({B, N, N}, call.q.options().dtype(at::kFloat));
  const std::int64_t block = every ? weights.block() : 1;
  for (std::int64_t next = 0; next < looked; next += block) {
    const std::int64_t i = every ? next : next * N / looked;
    const std::int64_t count = std::min(block, N - i);
    const at::Tensor a = weights.rows(i, count);  // (B,H,count,M), signed perhaps
    const at::Tensor size = a.abs(), counts = how.counts.narrow(2, i, count);
    const Places places = places_of(how.grid, i + M - N, count, size);
    const at::Tensor shown = size * places.keys.to(size.scalar_type());
    const at::Tensor mass = shown.sum(-1);
    const at::Tensor stands = counts.logical_and(places.stands).logical_and(mass.gt(0));
    set(of.distance, i, (shown * places.far).sum(-1) / mass.clamp_min(1e-30), stands);
    const at::Tensor all = size.sum(-1);
    const at::Tensor most =
        std::get<0>(size.topk(std::min(how.top, M), -1, true, /*sorted=*/false)).sum(-1);
    set(of.top, i, (most / all.clamp_min(1e-30)).clamp_max(1), counts.logical_and(all.gt(0)));
    const at::Tensor flat = a.flatten(2).to(at::kDouble);
    products += at::matmul(flat, flat.transpose(1, 2));
    if (how.rolls) {
      at::Tensor mean = size.mean(1).to(at::kFloat);  // (B,count,M)
      mean.diagonal(i, 1, 2).add_(1);
      step.narrow(1, i, count).copy_(mean / mean.sum(-1, true));
    }
  }
  of.head_distance =
      distances_of(products * (double(N) / double(std::max<std::int64_t>(looked, 1))));
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
