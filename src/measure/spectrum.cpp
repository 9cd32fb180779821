// SPDX-License-Identifier: Apache-2.0
// In how many directions tokens lie: singular values from the smaller Gram matrix in double, or,
// where that is too large, sums over them from random vectors (stochastic Lanczos quadrature;
// Ubaru, Chen and Saad 2017) with their errors. X'X itself is then never formed.
#include <foci/error.hpp>
#include <foci/measure.hpp>
#include <foci/random.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace foci::measure {
namespace {

/// x ln x, 0 at 0.
double x_ln(double x) { return x > 0 ? x * std::log(x) : 0; }

/// Sums over singular values: sigma, sigma ln sigma, sigma^2, sigma^2 ln sigma^2, sigma^4.
using Traces = std::array<double, 5>;

void add(Traces& to, double square, double times) {
  const double sigma = std::sqrt(square);
  const Traces terms{sigma, x_ln(sigma), square, x_ln(square), square * square};
  for (std::size_t i = 0; i < terms.size(); ++i) to[i] += times * terms[i];
}

/// exp of the entropy of x / sum x, from sum x and sum x ln x.
double rank_of(double sum, double sum_ln) {
  return sum > 0 ? std::exp(std::log(sum) - sum_ln / sum) : 0;
}

struct Numbers {
  double effective_rank, effective_rank_squares, participation;
};
Numbers numbers_of(const Traces& t) {
  return {rank_of(t[0], t[1]), rank_of(t[2], t[3]), t[4] > 0 ? t[2] * t[2] / t[4] : 0};
}

Spectrum exact_spectrum(const at::Tensor& x) {
  const bool wide = x.size(1) > x.size(0);
  const at::Tensor gram = wide ? at::matmul(x, x.t()) : at::matmul(x.t(), x);
  const at::Tensor squares = at::linalg_eigvalsh(gram).contiguous();
  const auto* values = squares.data_ptr<double>();
  Traces traces{};
  double most = 0;
  // Below rounding of the largest an eigenvalue of the Gram matrix is noise.
  const double noise = 1e-15 * double(squares.numel()) * std::max(values[squares.numel() - 1], 0.0);
  for (std::int64_t i = 0; i < squares.numel(); ++i) {
    if (values[i] <= noise) continue;
    add(traces, values[i], 1);
    most = std::max(most, values[i]);
  }
  const Numbers of = numbers_of(traces);
  return {{of.effective_rank, 0},
          {of.effective_rank_squares, 0},
          {most > 0 ? traces[2] / most : 0, 0},
          {of.participation, 0}};
}

/// What one random vector says: traces, and the largest eigenvalue with a bound on its error.
struct Probe {
  Traces traces{};
  double most = 0, error = 0;
};

/// Lanczos from z with every vector kept orthogonal to all before it.
Probe probe(const at::Tensor& x, const at::Tensor& z, int steps) {
  const std::int64_t n = z.size(0);
  const bool wide = x.size(1) > x.size(0);
  const auto applied = [&](const at::Tensor& v) {
    return wide ? at::matmul(x, at::matmul(x.t(), v)) : at::matmul(x.t(), at::matmul(x, v));
  };
  const std::int64_t most_steps = std::min<std::int64_t>(steps, n);
  const at::Tensor basis = at::zeros({most_steps, n}, at::kDouble);
  const at::Tensor T = at::zeros({most_steps, most_steps}, at::kDouble);
  at::Tensor v = z / z.norm();
  double beta = 0;
  std::int64_t made = 0;
  while (made < most_steps) {
    basis[made].copy_(v);
    at::Tensor w = applied(v);
    T[made][made] = w.dot(v);
    const at::Tensor known = basis.narrow(0, 0, made + 1);
    for (int twice = 0; twice < 2; ++twice) w = w - at::matmul(known.t(), at::matmul(known, w));
    beta = w.norm().item<double>();
    ++made;
    if (beta <= 1e-12 * T[0][0].item<double>() || made == most_steps) break;
    T[made][made - 1] = beta;
    T[made - 1][made] = beta;
    v = w / beta;
  }
  const auto [values, vectors] = at::linalg_eigh(T.narrow(0, 0, made).narrow(1, 0, made));
  const at::Tensor first = vectors[0].contiguous(), last = vectors[made - 1].contiguous();
  const auto* value = values.data_ptr<double>();
  const auto* weight = first.data_ptr<double>();
  Probe of;
  for (std::int64_t i = 0; i < made; ++i)
    add(of.traces, std::max(value[i], 0.0), double(n) * weight[i] * weight[i]);
  of.most = value[made - 1];
  of.error = made == n ? 0 : beta * std::abs(last.data_ptr<double>()[made - 1]);
  return of;
}

/// f of the means over probes, and its jackknife error.
template <class F>
Estimate estimate(const std::vector<Probe>& probes, F&& f) {
  const auto count = double(probes.size());
  Traces sum{};
  for (const Probe& p : probes) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += p.traces[i];
  }
  const auto mean_without = [&](const Traces& left, double n) {
    Traces mean{};
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = (sum[i] - left[i]) / n;
    return numbers_of(mean);
  };
  Estimate of{f(mean_without(Traces{}, count)), 0};
  double mean = 0, squares = 0;
  for (const Probe& p : probes) mean += f(mean_without(p.traces, count - 1)) / count;
  for (const Probe& p : probes) {
    const double off = f(mean_without(p.traces, count - 1)) - mean;
    squares += off * off;
  }
  of.error = std::sqrt((count - 1) / count * squares);
  return of;
}

Spectrum probed_spectrum(const at::Tensor& x, const SpectrumOptions& how) {
  const std::int64_t n = std::min(x.size(0), x.size(1));
  const double energy = x.square().sum().item<double>();
  if (energy == 0) return {};
  std::vector<Probe> probes;
  Probe top;
  for (int i = 0; i < how.probes; ++i) {
    data::Random random(how.seed, 0x5bec, std::uint64_t(i));
    const at::Tensor z = at::empty({n}, at::kDouble);
    for (std::int64_t d = 0; d < n; ++d) z.data_ptr<double>()[d] = random.below(2) == 0 ? -1 : 1;
    probes.push_back(probe(x, z, how.steps));
    probes.back().traces[2] = energy;  // known
    if (probes.back().most > top.most) top = probes.back();
  }
  return {estimate(probes, [](const Numbers& of) { return of.effective_rank; }),
          estimate(probes, [](const Numbers& of) { return of.effective_rank_squares; }),
          {energy / top.most, energy / top.most * std::min(1.0, top.error / top.most)},
          estimate(probes, [](const Numbers& of) { return of.participation; })};
}

}  // namespace

Spectrum spectrum(const at::Tensor& x, const SpectrumOptions& how) {
  if (x.dim() != 2 || x.numel() == 0) {
    throw InvalidArgument(fmt::format("tokens have shape {}; they must be (tokens, size)",
                                      to_string(std::span(x.sizes()))));
  }
  if (how.probes < 2 || how.steps < 2 || how.exact < 1) {
    throw InvalidArgument(
        fmt::format("{} probes, {} steps, exact up to {}; needed are 2, 2 and 1 at least",
                    how.probes, how.steps, how.exact));
  }
  const at::NoGradGuard without;
  const at::Tensor plain = x.detach().to(at::kCPU, at::kDouble);
  const double scale = plain.abs().max().item<double>();
  if (scale == 0) return {};
  if (!std::isfinite(scale)) return {{NAN, 0}, {NAN, 0}, {NAN, 0}, {NAN, 0}};
  const at::Tensor safe = plain / scale;  // none of the numbers hangs on it
  return std::min(x.size(0), x.size(1)) <= how.exact ? exact_spectrum(safe)
                                                     : probed_spectrum(safe, how);
}

}  // namespace foci::measure
