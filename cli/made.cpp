// SPDX-License-Identifier: Apache-2.0
// Made tensors: a 64-bit counter scrambled into uniform numbers, turned normal by Box and Muller's
// polar coordinates. Not for statistics, only for tensors that are the same everywhere.
#include "cli/made.hpp"

#include "cli/mechanism.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <numbers>
#include <span>

namespace foci::cli {
namespace {

/// Refuses sizes that only the out-of-memory killer would answer.
void check_memory(const Sizes& s) {
  const double rows = double(s.B) * double(s.H) * double(s.N) * double(s.D + s.E);
  const double keys = double(s.B) * double(s.G) * double(s.M) * double(s.D + 2 * s.E);
  const double copies = 4;  // f64, the number type asked for, and the gradients of both
  const double bytes = copies * double(sizeof(double)) * (rows + keys);
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  if (bytes < memory) return;
  throw InvalidArgument(
      fmt::format("shape {},{},{},{} with {} keys needs about {:.1f} GiB; this machine has {:.1f}",
                  s.B, s.H, s.N, s.D, s.M, bytes / 0x1p30, memory / 0x1p30));
}

/// from at the first coordinate, to at the last.
double between(double from, double to, std::int64_t d, std::int64_t count) {
  return count < 2 ? to : from + (to - from) * double(d) / double(count - 1);
}

Tensor normal(Normal& draw, const Shape& shape, double from, double to) {
  Tensor tensor(DType::f64, shape);
  const std::int64_t width = shape.back();
  std::int64_t at = 0;
  for (double& x : std::span(tensor.data<double>(), std::size_t(tensor.view().count()))) {
    x = draw() * between(from, to, at++ % width, width);
  }
  return tensor;
}

/// m in [0.1, 1], or P = A A'/D + I/2, one per key head.
Tensor given_metric(Normal& draw, const Sizes& s, Extent extent) {
  if (extent == Extent::diagonal) {
    Tensor m(DType::f64, {s.B, s.G, 1, s.D});
    for (double& x : std::span(m.data<double>(), std::size_t(s.B * s.G * s.D))) {
      x = 0.1 + 0.9 * draw.uniform();
    }
    return m;
  }
  Tensor P(DType::f64, {s.B, s.G, s.D, s.D});
  const Tensor A = normal(draw, {s.D, s.D}, 1, 1);
  const double* a = A.data<double>();
  double* p = P.data<double>();
  for (std::int64_t head = 0; head < s.B * s.G; ++head) {
    for (std::int64_t i = 0; i < s.D; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) {
        double sum = i == j ? 0.5 : 0.0;
        for (std::int64_t d = 0; d < s.D; ++d) sum += a[i * s.D + d] * a[j * s.D + d] / double(s.D);
        p[(head * s.D + i) * s.D + j] = p[(head * s.D + j) * s.D + i] = sum;
      }
    }
  }
  return P;
}

}  // namespace

double Normal::uniform() {
  state_ += 0x9e3779b97f4a7c15u;
  std::uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return (double(x >> 12) + 0.5) * 0x1.0p-52;
}

double Normal::operator()() {
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

Tensor made_gradient(const Sizes& s, std::uint64_t seed) {
  Normal draw(seed);
  return normal(draw, {s.B, s.H, s.N, s.E}, 1, 1);
}

Tensor made_key_bias(const Sizes& s, std::uint64_t seed) {
  Normal draw(seed + 1);
  return normal(draw, {s.B, s.H, s.M}, 1, 1);
}

Problem made_problem(const Sizes& s, const Options& how, std::uint64_t seed) {
  check_memory(s);
  Normal draw(seed);
  Problem problem;
  auto& to = problem.tensors;
  to["q"] = normal(draw, {s.B, s.H, s.N, s.D}, 1, 1);
  to["k"] = normal(draw, {s.B, s.G, s.M, s.D}, 0.3, 2);
  Tensor v_prev = normal(draw, {s.B, s.G, s.M, s.E}, 1, 1);
  to["v"] = normal(draw, {s.B, s.G, s.M, s.E}, 0.1, 1.5);
  const std::int64_t count = v_prev.view().count();
  for (std::int64_t i = 0; i < count; ++i) to["v"].data<double>()[i] += v_prev.data<double>()[i];
  if (uses_v_prev(how.metric)) to["v_prev"] = std::move(v_prev);
  to["do"] = normal(draw, {s.B, s.H, s.N, s.E}, 1, 1);
  if (const Given* given = std::get_if<Given>(&how.metric)) {
    to["metric"] = given_metric(draw, s, given->extent);
  }
  return problem;
}

}  // namespace foci::cli
