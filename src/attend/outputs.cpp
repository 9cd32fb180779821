// SPDX-License-Identifier: Apache-2.0
// What is written to: shapes, types, and outputs that a mechanism does not have.
#include "attend/check.hpp"
#include "attend/want.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

namespace foci::checks {

using metric::Problem;
using metric::Sizes;

namespace {

struct Wanted {
  std::string_view name;
  const View& view;
  Dims shape;
  std::string_view meaning;
};

void want_row_statistic(const Wanted& w) {
  if (!w.view) return;
  want_shape(w.name, w.view, w.shape, w.meaning);
  want_wide(w.name, w.view);
  want_writable(w.name, w.view);
}

void want_like_q(const Wanted& w, const View& q) {
  if (!w.view) return;
  want_shape(w.name, w.view, w.shape, w.meaning);
  want_type_of_q(w.name, w.view, q);
  want_writable(w.name, w.view);
}

void want_type(std::string_view name, const View& view, DType dtype) {
  if (view && view.dtype != dtype) {
    throw InvalidArgument(fmt::format("{} has type {}; it must be {}", name,
                                      foci::name_of(view.dtype), foci::name_of(dtype)));
  }
}

/// Its own type will do as well as a wide one.
void want_bias_gradient(const View& dkey_bias, const View& key_bias) {
  if (!dkey_bias) return;
  want_shape("dkey_bias", dkey_bias, Dims(key_bias.sizes()), "key_bias' shape");
  if (dkey_bias.dtype != key_bias.dtype) want_wide("dkey_bias", dkey_bias);
  want_writable("dkey_bias", dkey_bias);
}

bool sums_to_one(const Weighting& weighting) {
  const auto* decay = std::get_if<Decay>(&weighting);
  return std::holds_alternative<Softmax>(weighting) || std::holds_alternative<Linear>(weighting) ||
         (decay && !decay->content);
}

/// Outputs that the mechanism does not have.
void refuse_absent(const Outputs& to, const Problem& p) {
  if (to.lse && !std::holds_alternative<Softmax>(p.how.weighting)) {
    throw InvalidArgument(
        fmt::format("lse belongs to softmax; the weighting is {}", name_of(p.how.weighting)));
  }
  if (to.entropy && !sums_to_one(p.how.weighting)) {
    throw InvalidArgument(fmt::format(
        "entropy needs weights that sum to one (softmax, linear, decay without content); "
        "the weighting is {}",
        name_of(p.how.weighting)));
  }
  if (to.metric && p.metric<Dot>()) throw InvalidArgument("dot has no metric to write out");
  if (to.status && !p.full) {
    throw InvalidArgument(
        fmt::format("status belongs to full metrics; the metric is {}", name_of(p.how.metric)));
  }
  if (to.scale && !p.full) {
    throw InvalidArgument(
        fmt::format("scale is written for full metrics; the metric is {}", name_of(p.how.metric)));
  }
}

}  // namespace

Dims metric_shape(const Problem& p) {
  const Sizes& z = p.size;
  if (p.metric<Dot>()) return {};
  if (p.metric<Given>()) return Dims(p.from.metric.sizes());
  const bool prefix = p.scope == Scope::prefix;
  if (const auto* covariance = p.metric<KeyCovariance>()) {
    if (!prefix) return {p.sequences, z.G, z.D, z.D};
    std::int64_t chunks = metric::chunk_count(z.M, covariance->period);
    if (p.packed()) {
      const metric::Sequence last =
          p.sequences == 0 ? metric::Sequence{} : metric::sequence(p, p.sequences - 1);
      chunks = last.chunk0 + last.chunks;
    }
    return {z.B, z.G, chunks, z.D, z.D};
  }
  const std::int64_t heads = p.metric<Jacobian>() ? z.H : z.G;
  if (prefix && !p.metric<Random>()) return {z.B, heads, z.N, z.D};
  return {p.sequences, heads, 1, z.D};
}

Dims status_shape(const Problem& p) {
  Dims shape = metric_shape(p);
  if (shape.rank > 2) shape.rank -= 2;
  return shape;
}

namespace {

/// Calls each({b, h, i, d}) for every element of a tensor of rank 4.
template <class Each>
void each_element(const View& of, Each&& each) {
  for (std::int64_t b = 0; b < of.shape[0]; ++b) {
    for (std::int64_t h = 0; h < of.shape[1]; ++h) {
      for (std::int64_t i = 0; i < of.shape[2]; ++i) {
        for (std::int64_t d = 0; d < of.shape[3]; ++d) each(Dims{b, h, i, d});
      }
    }
  }
}

}  // namespace

void echo_given(const View& to, const Problem& p) {
  if (!to || !p.metric<Given>()) return;
  each_element(to, [&](const Dims& at) {
    metric::store_one(to, at, metric::load_one<double>(p.from.metric, at));
  });
}

void clear(const View& dmetric) {
  if (dmetric.rank != 4) return;  // a chunked one has no element without sequences
  each_element(dmetric, [&](const Dims& at) { metric::store_one(dmetric, at, 0.0); });
}

void check_outputs(const Outputs& to, const Problem& p) {
  const Sizes& z = p.size;
  if (!to.o) throw InvalidArgument("o is missing; it must be (B,H,N,E)");
  want_like_q({"o", to.o, {z.B, z.H, z.N, z.E}, "(B,H,N,E)"}, p.from.q);
  refuse_absent(to, p);
  const Dims rows{z.B, z.H, z.N};
  want_row_statistic({"lse", to.lse, rows, "(B,H,N)"});
  want_row_statistic({"concentration", to.concentration, rows, "(B,H,N)"});
  want_row_statistic({"effective_keys", to.effective_keys, rows, "(B,H,N)"});
  want_row_statistic({"entropy", to.entropy, rows, "(B,H,N)"});
  want_row_statistic({"largest", to.largest, rows, "(B,H,N)"});
  if (to.largest_at) want_shape("largest_at", to.largest_at, rows, "(B,H,N)");
  want_type("largest_at", to.largest_at, DType::i64);
  want_writable("largest_at", to.largest_at);
  want_row_statistic({"metric", to.metric, metric_shape(p), "the metric's shape"});
  want_row_statistic({"scale", to.scale, {p.sequences, z.G}, "(B,G)"});
  if (to.status)
    want_shape("status", to.status, status_shape(p), "the metric's shape without (D,D)");
  want_type("status", to.status, DType::i32);
  want_writable("status", to.status);
}

void check_gradients(const Gradients& to, const Problem& p) {
  const Sizes& z = p.size;
  const View& q = p.from.q;
  if (!to.d_o) throw InvalidArgument("d_o is missing; it must be (B,H,N,E)");
  want_shape("d_o", to.d_o, {z.B, z.H, z.N, z.E}, "(B,H,N,E)");
  want_type_of_q("d_o", to.d_o, q);
  want_like_q({"dq", to.dq, {z.B, z.H, z.N, z.D}, "(B,H,N,D)"}, q);
  want_like_q({"dk", to.dk, {z.B, z.G, z.M, z.D}, "(B,G,M,D)"}, q);
  want_like_q({"dv", to.dv, {z.B, z.G, z.M, z.E}, "(B,G,M,E)"}, q);
  if (to.dv_prev && !p.from.v_prev)
    throw InvalidArgument("dv_prev is asked for, but there is no v_prev");
  want_like_q({"dv_prev", to.dv_prev, {z.B, z.G, z.M, z.E}, "(B,G,M,E)"}, q);
  if (to.dmetric && p.metric<Dot>())
    throw InvalidArgument("dmetric is asked for, but dot has no metric");
  want_row_statistic({"dmetric", to.dmetric, metric_shape(p), "the metric's shape"});
  if (to.dkey_bias && !p.from.key_bias)
    throw InvalidArgument("dkey_bias is asked for, but there is no key_bias");
  want_bias_gradient(to.dkey_bias, p.from.key_bias);
}

void check_saved(const Outputs& saved, const Problem& p) {
  const Sizes& z = p.size;
  want_like_q({"saved o", saved.o, {z.B, z.H, z.N, z.E}, "(B,H,N,E)"}, p.from.q);
  want_row_statistic({"saved lse", saved.lse, {z.B, z.H, z.N}, "(B,H,N)"});
}

}  // namespace foci::checks
