// SPDX-License-Identifier: Apache-2.0
// Weights as pictures need them, and what is read off whole matrices: rollout, how far heads are
// apart, Dirichlet energy.
#include "measure/weights.hpp"

#include <foci/error.hpp>
#include <foci/measure.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

namespace foci::measure {
std::vector<at::Tensor> maps(const std::function<void()>& pass) {
  const at::NoGradGuard without;
  std::vector<at::Tensor> all;
  std::int64_t numbers = 0;
  const nn::Watch watch([&](const nn::Seen& call) {
    numbers += call.q.size(0) * call.q.size(1) * call.q.size(2) * call.k.size(2);
    if (numbers > most_weights) {
      throw Unsupported(fmt::format(
          "maps of {} weights up to layer {}, more than 2 GiB; the nearest is fewer samples, or "
          "weights() of some queries",
          numbers, call.layer));
    }
    all.push_back(weights(call));
  });
  pass();
  return all;
}

at::Tensor rollout(const std::vector<at::Tensor>& maps) {
  if (maps.empty()) throw InvalidArgument("rollout of no layers; it needs the map of one at least");
  at::Tensor product;
  for (const at::Tensor& map : maps) {
    const std::int64_t N = map.size(-1);
    if (map.dim() < 3 || map.size(-2) != N || (product.defined() && product.size(-1) != N)) {
      throw InvalidArgument(fmt::format(
          "rollout of a map of shape {}; each must be (heads, N, N), with one N for all layers",
          to_string(std::span(map.sizes()))));
    }
    const at::Tensor mean = map.abs().mean(-3);
    const at::Tensor mixed = (mean + at::eye(N, mean.options())) / 2;
    const at::Tensor step = mixed / mixed.sum(-1, true);
    product = product.defined() ? at::matmul(step, product) : step;
  }
  return product;
}

double head_distance(const at::Tensor& a) {
  if (a.dim() != 3) {
    throw InvalidArgument(fmt::format("a has shape {}; it must be (heads, queries, keys)",
                                      to_string(std::span(a.sizes()))));
  }
  const std::int64_t H = a.size(0);
  if (H < 2) return 0;
  double sum = 0;
  for (std::int64_t h = 0; h < H; ++h) {
    for (std::int64_t g = h + 1; g < H; ++g)
      sum += (a[h] - a[g]).to(at::kDouble).norm().item<double>();
  }
  return 2 * sum / double(H * (H - 1));
}

double dirichlet(const at::Tensor& x, const at::Tensor& a) {
  if (x.dim() != 2 || a.dim() != 2 || a.size(0) != x.size(0) || a.size(1) != x.size(0)) {
    throw InvalidArgument(
        fmt::format("tokens of shape {} and weights of {}; they must be (N, D) and (N, N)",
                    to_string(std::span(x.sizes())), to_string(std::span(a.sizes()))));
  }
  const at::Tensor wide = x.to(at::kDouble), w = a.to(at::kDouble);
  const at::Tensor centred = wide - wide.mean(0, true);  // the same differences, less rounding
  const at::Tensor squares = centred.square().sum(1);    // (N)
  const at::Tensor both = (squares * w.sum(1)).sum() + (squares * w.sum(0)).sum();
  const at::Tensor cross = (centred * at::matmul(w, centred)).sum();
  return 0.5 * both.item<double>() - cross.item<double>();
}

}  // namespace foci::measure
