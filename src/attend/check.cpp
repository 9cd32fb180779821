// SPDX-License-Identifier: Apache-2.0
// Tensors: shapes, types and values that must hold before anything is computed or written.
#include "attend/check.hpp"
#include "attend/want.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::checks {

using metric::Problem;
using metric::Sizes;

namespace {

void want_rank4(std::string_view name, const View& view, std::string_view meaning) {
  if (!view) throw InvalidArgument(fmt::format("{} is missing; it must be {}", name, meaning));
  if (view.rank != 4) {
    throw InvalidArgument(
        fmt::format("{} has shape {}; it must be {}", name, to_string(view.sizes()), meaning));
  }
  want_floating(name, view);
  want_memory(name, view);
}

Sizes sizes_of(const Inputs& from) {
  want_rank4("q", from.q, "(B,H,N,D)");
  want_rank4("k", from.k, "(B,G,M,D)");
  want_rank4("v", from.v, "(B,G,M,E)");
  Sizes size{.B = from.q.shape[0],
             .H = from.q.shape[1],
             .G = from.k.shape[1],
             .N = from.q.shape[2],
             .M = from.k.shape[2],
             .D = from.q.shape[3],
             .E = from.v.shape[3]};
  if (size.D < 1)
    throw InvalidArgument(fmt::format("q has shape {}: the head size D must be at least 1",
                                      to_string(from.q.sizes())));
  if (size.E < 1)
    throw InvalidArgument(fmt::format("v has shape {}: the value size E must be at least 1",
                                      to_string(from.v.sizes())));
  if (size.G < 1 || size.H < 1 || size.H % size.G != 0) {
    throw InvalidArgument(
        fmt::format("q has {} heads and k has {}; query heads must be a multiple of key heads",
                    size.H, size.G));
  }
  want_shape("k", from.k, {size.B, size.G, size.M, size.D}, "(B,G,M,D)");
  want_shape("v", from.v, {size.B, size.G, size.M, size.E}, "(B,G,M,E)");
  want_type_of_q("k", from.k, from.q);
  want_type_of_q("v", from.v, from.q);
  return size;
}

void check_offsets(std::string_view name, const View& offsets, std::int64_t total) {
  if (offsets.rank != 1 || offsets.shape[0] < 1) {
    throw InvalidArgument(
        fmt::format("{} has shape {}; it must be (S+1)", name, to_string(offsets.sizes())));
  }
  if (offsets.dtype != DType::i64 && offsets.dtype != DType::i32) {
    throw InvalidArgument(
        fmt::format("{} has type {}; it must be i64 or i32", name, foci::name_of(offsets.dtype)));
  }
  want_memory(name, offsets);
  std::int64_t last = 0;
  for (std::int64_t s = 0; s < offsets.shape[0]; ++s) {
    const std::int64_t at = metric::offset(offsets, s);
    if (s == 0 ? at != 0 : at < last) {
      throw InvalidArgument(
          fmt::format("{}[{}] is {}; offsets begin at 0 and never fall", name, s, at));
    }
    last = at;
  }
  if (last != total) {
    throw InvalidArgument(fmt::format("{} ends at {}; there are {} tokens", name, last, total));
  }
}

void place_sequences(Problem& p) {
  const Inputs& from = p.from;
  p.sequences = p.size.B;
  p.longest_n = p.size.N;
  p.longest_m = p.size.M;
  if (!from.q_offsets && !from.k_offsets) return;
  if (!from.q_offsets || !from.k_offsets) {
    throw InvalidArgument("packed sequences need both q_offsets and k_offsets; one is missing");
  }
  if (p.size.B != 1) {
    throw InvalidArgument(fmt::format("packed sequences need B = 1; q has B = {}", p.size.B));
  }
  check_offsets("q_offsets", from.q_offsets, p.size.N);
  check_offsets("k_offsets", from.k_offsets, p.size.M);
  if (from.q_offsets.shape[0] != from.k_offsets.shape[0]) {
    throw InvalidArgument(fmt::format("q_offsets tells of {} sequences and k_offsets of {}",
                                      from.q_offsets.shape[0] - 1, from.k_offsets.shape[0] - 1));
  }
  p.sequences = from.q_offsets.shape[0] - 1;
  p.longest_n = p.longest_m = 0;
  for (std::int64_t s = 0; s < p.sequences; ++s) {
    const metric::Sequence at = metric::sequence(p, s);
    p.longest_n = std::max(p.longest_n, at.N);
    p.longest_m = std::max(p.longest_m, at.M);
  }
}

void check_value_change(const Problem& p) {
  if (!p.metric<LayerChange>() && !p.metric<Flat>()) return;
  const std::string_view name = name_of(p.how.metric);
  if (!p.from.v_prev) {
    throw InvalidArgument(
        fmt::format("metric {} compares values with those of the layer below: v_prev is missing "
                    "(the lowest layer has none: use dot)",
                    name));
  }
  if (p.size.E != p.size.D) {
    throw InvalidArgument(
        fmt::format("metric {} weighs head dimensions by how values change, so it needs E = D; "
                    "E is {} and D is {}",
                    name, p.size.E, p.size.D));
  }
}

void check_extras(const Problem& p) {
  const Inputs& from = p.from;
  const Sizes& z = p.size;
  if (from.v_prev) {
    want_shape("v_prev", from.v_prev, {z.B, z.G, z.M, z.E}, "(B,G,M,E)");
    want_type_of_q("v_prev", from.v_prev, from.q);
  }
  if (from.key_mask) {
    want_shape("key_mask", from.key_mask, {z.B, z.M}, "(B,M)");
    if (from.key_mask.dtype != DType::boolean && from.key_mask.dtype != DType::u8) {
      throw InvalidArgument(fmt::format("key_mask has type {}; it must be boolean",
                                        foci::name_of(from.key_mask.dtype)));
    }
  }
  if (!from.key_bias) return;
  const View& bias = from.key_bias;
  const bool fits = bias.rank == 3 && bias.shape[0] == z.B && bias.shape[2] == z.M &&
                    (bias.shape[1] == z.H || bias.shape[1] == z.G);
  if (!fits) {
    throw InvalidArgument(fmt::format(
        "key_bias has shape {}; it must be (B,H,M) = ({}, {}, {}) or (B,G,M) = ({}, {}, {})",
        to_string(bias.sizes()), z.B, z.H, z.M, z.B, z.G, z.M));
  }
  want_memory("key_bias", bias);
  want_floating("key_bias", from.key_bias);
  const auto* decay = std::get_if<Decay>(&p.how.weighting);
  if (std::holds_alternative<Linear>(p.how.weighting) || (decay && !decay->content)) {
    throw InvalidArgument(
        fmt::format("weighting {}{} has no scores to add a key_bias to: leave it out",
                    name_of(p.how.weighting), decay ? " without content" : ""));
  }
}

void check_given_diagonal(const Problem& p) {
  const View& m = p.from.metric;
  const Sizes& z = p.size;
  const bool fits = m.rank == 4 && (m.shape[0] == 1 || m.shape[0] == p.sequences) &&
                    (m.shape[1] == z.G || m.shape[1] == z.H) &&
                    (m.shape[2] == 1 || m.shape[2] == z.N) && m.shape[3] == z.D &&
                    !(p.packed() && m.shape[2] == z.N && z.N != 1 && m.shape[0] != 1);
  if (!fits) {
    throw InvalidArgument(fmt::format(
        "metric has shape {}; a given diagonal metric is (1|B, G|H, 1|N, D) with B = {}, "
        "G = {}, H = {}, N = {}, D = {}",
        to_string(m.sizes()), p.sequences, z.G, z.H, z.N, z.D));
  }
  want_wide("metric", m);
  if (p.on_device) return;
  for (std::int64_t b = 0; b < m.shape[0]; ++b) {
    for (std::int64_t h = 0; h < m.shape[1]; ++h) {
      for (std::int64_t i = 0; i < m.shape[2]; ++i) {
        for (std::int64_t d = 0; d < z.D; ++d) {
          const double x = metric::load_one<double>(m, {b, h, i, d});
          if (x >= 0 && !std::isinf(x)) continue;
          throw InvalidArgument(
              fmt::format("metric[{},{},{},{}] is {:g}; a given metric must be finite and >= 0", b,
                          h, i, d, x));
        }
      }
    }
  }
}

void check_given_full(const Problem& p) {
  const View& P = p.from.metric;
  const Sizes& z = p.size;
  if (P.rank != 4 || (P.shape[0] != 1 && P.shape[0] != p.sequences) || P.shape[1] != z.G ||
      P.shape[2] != z.D || P.shape[3] != z.D) {
    throw InvalidArgument(fmt::format(
        "metric has shape {}; a given full metric is (1|B, G, D, D) with B = {}, G = {}, "
        "D = {}",
        to_string(P.sizes()), p.sequences, z.G, z.D));
  }
  want_wide("metric", P);
  if (p.on_device) return;
  const double precision = P.dtype == DType::f64 ? 1e-12 : 1e-5;
  for (std::int64_t b = 0; b < P.shape[0]; ++b) {
    for (std::int64_t g = 0; g < z.G; ++g) {
      for (std::int64_t d = 0; d < z.D; ++d) {
        for (std::int64_t e = 0; e <= d; ++e) {
          const double x = metric::load_one<double>(P, {b, g, d, e}),
                       y = metric::load_one<double>(P, {b, g, e, d});
          // An entry that is small beside its diagonal has that one's rounding.
          const double size = std::sqrt(std::abs(metric::load_one<double>(P, {b, g, d, d}) *
                                                 metric::load_one<double>(P, {b, g, e, e})));
          if (std::abs(x - y) <= precision * std::max({std::abs(x), std::abs(y), size})) continue;
          throw InvalidArgument(
              fmt::format("metric[{},{},{},{}] is {:.9g} but its mirror image is {:.9g}; a given "
                          "full metric must be finite and symmetric",
                          b, g, d, e, x, y));
        }
      }
    }
  }
}

void check_given(const Problem& p) {
  if (p.metric<Given>() == nullptr) {
    if (!p.from.metric) return;
    throw InvalidArgument(
        fmt::format("a metric tensor came along, but the metric is {}: use given, or leave it out",
                    name_of(p.how.metric)));
  }
  if (!p.from.metric)
    throw InvalidArgument("metric given needs the tensor `metric`, which is missing");
  want_memory("metric", p.from.metric);
  p.full ? check_given_full(p) : check_given_diagonal(p);
}

}  // namespace

double standard_scale(const Problem& p) {
  return p.full || std::holds_alternative<Linear>(p.how.weighting)
             ? 1.0
             : 1.0 / std::sqrt(double(p.size.D));
}

Problem check(const Inputs& from, const Options& how, Memory memory) {
  check_options(how);
  Problem p;
  p.on_device = memory == Memory::device;
  p.from = from;
  p.how = how;
  p.size = sizes_of(from);
  const auto* decay = std::get_if<Decay>(&how.weighting);
  if (decay && !decay->content) p.how.metric = Dot{};  // weights come from positions alone
  p.scope = scope_of(p.how);
  const auto* given = p.metric<Given>();
  p.full = p.metric<KeyCovariance>() || (given && given->extent == Extent::full);
  if (auto* covariance = std::get_if<KeyCovariance>(&p.how.metric)) {
    if (!covariance->prior) covariance->prior = p.scope == Scope::prefix ? double(p.size.D) : 0.0;
  }
  place_sequences(p);
  p.match_dot = std::holds_alternative<MatchDot>(how.scale);
  const auto* number = std::get_if<double>(&how.scale);
  p.c = number ? *number : standard_scale(p);
  p.through = how.metric_grad == MetricGrad::standard ? p.metric<KeyCovariance>() != nullptr
                                                      : how.metric_grad == MetricGrad::through;
  check_value_change(p);
  check_extras(p);
  if (!decay || decay->content) check_given(p);
  return p;
}

}  // namespace foci::checks
