// SPDX-License-Identifier: Apache-2.0
// How alike tokens are: two passes over a sample, sums in double. Measured on every sample, so it
// must cost little beside the model.
#include <foci/error.hpp>
#include <foci/measure.hpp>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace foci::measure {
namespace {

constexpr double most_ratio = 1e12;

/// above / below, 0 for 0/0 and never more than 1e12; NaN stays NaN.
double ratio(double above, double below) {
  if (above == 0) return 0;
  if (std::isnan(above) || std::isnan(below)) return NAN;
  return below > above / most_ratio ? above / below : most_ratio;
}

struct Sample {
  double cosine = 1, high_low = 0, residual = 0, dirichlet = 0, dirichlet_relative = 0;
};

/// One sample's tokens, a row each; those whose `keep` is false do not count.
struct View {
  const float* x;
  const bool* keep;
  std::int64_t N, D;
};

/// Sums over tokens, one for each coordinate.
struct Sums {
  explicit Sums(std::int64_t D)
      : all(std::size_t(D)), sizes(std::size_t(D)), units(std::size_t(D)), far(std::size_t(D)) {}
  std::vector<double> all, sizes, units, far;  // of x, |x|, x / |x|_2, |x - mean|
};

double largest(const std::vector<double>& x) { return *std::max_element(x.begin(), x.end()); }

Sample likeness_of(const View& view) {
  const std::int64_t D = view.D;
  Sums sums(D);
  double n = 0, directed = 0, energy = 0, widest = 0;
  for (std::int64_t i = 0; i < view.N; ++i) {
    if (view.keep && !view.keep[i]) continue;
    const float* x = view.x + i * D;
    double squares = 0, size = 0;
    for (std::int64_t d = 0; d < D; ++d) {
      squares += double(x[d]) * double(x[d]);
      size += std::abs(double(x[d]));
    }
    const double unit = squares > 0 ? 1 / std::sqrt(squares) : 0;
    for (std::int64_t d = 0; d < D; ++d) {
      const double value = x[d];
      sums.all[std::size_t(d)] += value;
      sums.sizes[std::size_t(d)] += std::abs(value);
      sums.units[std::size_t(d)] += value * unit;
    }
    n += 1;
    directed += squares > 0;
    energy += squares;
    widest = std::max(widest, size);
  }
  Sample of;
  if (n == 0) return of;
  double constant = 0, along = 0, high = 0, farthest = 0;
  for (std::int64_t d = 0; d < D; ++d) {
    sums.all[std::size_t(d)] /= n;  // the mean
    constant += sums.all[std::size_t(d)] * sums.all[std::size_t(d)];
    along += sums.units[std::size_t(d)] * sums.units[std::size_t(d)];
  }
  for (std::int64_t i = 0; i < view.N; ++i) {
    if (view.keep && !view.keep[i]) continue;
    const float* x = view.x + i * D;
    double size = 0;
    for (std::int64_t d = 0; d < D; ++d) {
      const double off = double(x[d]) - sums.all[std::size_t(d)];
      sums.far[std::size_t(d)] += std::abs(off);
      size += std::abs(off);
      high += off * off;
    }
    farthest = std::max(farthest, size);
  }
  if (n > 1) of.cosine = std::clamp((along - directed) / (n * (n - 1)), -1.0, 1.0);
  of.high_low = ratio(std::sqrt(high), std::sqrt(n * constant));
  of.residual =
      ratio(std::sqrt(largest(sums.far) * farthest), std::sqrt(largest(sums.sizes) * widest));
  of.dirichlet = high / n;
  of.dirichlet_relative = ratio(of.dirichlet, energy);
  return of;
}

}  // namespace

Likeness likeness(const at::Tensor& x, const at::Tensor& mask) {
  if (x.dim() != 3 || x.size(2) < 1) {
    throw InvalidArgument(fmt::format("tokens have shape {}; they must be (batch, tokens, size)",
                                      to_string(std::span(x.sizes()))));
  }
  const std::int64_t B = x.size(0), N = x.size(1), D = x.size(2);
  if (mask.defined() && (mask.dim() != 2 || mask.size(0) != B || mask.size(1) != N)) {
    throw InvalidArgument(fmt::format("a mask of shape {}; these tokens need ({}, {})",
                                      to_string(std::span(mask.sizes())), B, N));
  }
  const at::NoGradGuard without;
  const at::Tensor rows = x.detach().to(at::kCPU, at::kFloat).contiguous();
  const at::Tensor keep = mask.defined() ? mask.to(at::kCPU, at::kBool).contiguous() : at::Tensor();
  const auto made = [&] { return at::empty({B}, at::kDouble); };
  const Likeness of{made(), made(), made(), made(), made()};
  const auto* from = rows.data_ptr<float>();
  const bool* kept = keep.defined() ? keep.data_ptr<bool>() : nullptr;
  at::parallel_for(0, B, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const Sample sample = likeness_of({from + b * N * D, kept ? kept + b * N : nullptr, N, D});
      of.cosine.data_ptr<double>()[b] = sample.cosine;
      of.high_low.data_ptr<double>()[b] = sample.high_low;
      of.residual.data_ptr<double>()[b] = sample.residual;
      of.dirichlet.data_ptr<double>()[b] = sample.dirichlet;
      of.dirichlet_relative.data_ptr<double>()[b] = sample.dirichlet_relative;
    }
  });
  return of;
}

}  // namespace foci::measure
