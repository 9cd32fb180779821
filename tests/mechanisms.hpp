// SPDX-License-Identifier: Apache-2.0
// Every metric and weighting that tests walk through, with the options that change their formulas,
// and the calls that compute all there is to compute.
#pragma once

#include "cases.hpp"

#include <foci/attention.hpp>

#include <string>
#include <vector>

namespace foci::cases {

struct NamedMetric {
  std::string name;
  Metric metric;
};
struct NamedWeighting {
  std::string name;
  Weighting weighting;
};

inline std::vector<NamedMetric> metrics() {
  return {{"dot", Dot{}},
          {"dot_distance", Dot{Form::distance}},
          {"layer_change", LayerChange{}},
          {"layer_change_mean", LayerChange{.normalize = Normalize::mean}},
          {"layer_change_none", LayerChange{.normalize = Normalize::none}},
          {"layer_change_distance", LayerChange{.form = Form::distance}},
          {"layer_change_median", LayerChange{.reduce = Reduce::median}},
          {"flat", Flat{}},
          {"flat_mean", Flat{.normalize = Normalize::mean}},
          {"jacobian", Jacobian{}},
          {"jacobian_none", Jacobian{.normalize = Normalize::none}},
          {"jacobian_distance", Jacobian{.form = Form::distance}},
          {"key_covariance", KeyCovariance{.ridge = 1e-2, .period = 4}},
          {"key_covariance_prior", KeyCovariance{.ridge = 1e-2, .prior = 3.0, .period = 3}},
          {"random", Random{.seed = 7}},
          {"random_distance", Random{.form = Form::distance, .seed = 7}},
          {"given", Given{}},
          {"given_distance", Given{Form::distance}},
          {"given_full", Given{Form::product, Extent::full}}};
}

inline std::vector<NamedWeighting> weightings() {
  return {{"softmax", Softmax{}},
          {"relu2", Relu2{}},
          {"relu2_l1", Relu2{Rescale::l1}},
          {"relu2_l2", Relu2{Rescale::l2}},
          {"identity", Identity{}},
          {"identity_l1", Identity{Rescale::l1}},
          {"identity_l2", Identity{Rescale::l2}},
          {"identity_none", Identity{Rescale::none}},
          {"linear_elu1", Linear{}},
          {"linear_relu", Linear{Feature::relu}},
          {"linear_exp", Linear{Feature::exp}},
          {"decay", Decay{}},
          {"decay_content", Decay{0.8, true}}};
}

/// Why a call would be refused; empty when it would not. Asked of the library.
inline std::string refused(const Inputs& from, const Options& how) {
  try {
    need(from, how);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// A metric tensor for `given`: positive m, or a positive definite P.
inline void give_metric(Made& made, const Metric& metric, std::int64_t rows = 1) {
  const auto* given = std::get_if<Given>(&metric);
  if (!given) return;
  const Case& c = made.c;
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  if (given->extent == Extent::diagonal) {
    Tensor m = Tensor::copy(made.normal("metric", {c.B, c.G, rows, c.D}, 1), DType::f64);
    for (std::int64_t i = 0; i < m.view().count(); ++i)
      m.data<double>()[i] = std::abs(m.data<double>()[i]) + 0.1;
    made.put("metric", Tensor::copy(m, wide));
    return;
  }
  const Tensor a = Tensor::copy(made.normal("metric", {c.B, c.G, c.D, c.D}, 1), DType::f64);
  Tensor P(DType::f64, {c.B, c.G, c.D, c.D});
  for (std::int64_t s = 0; s < c.B * c.G; ++s) {
    for (std::int64_t i = 0; i < c.D; ++i) {
      for (std::int64_t j = 0; j < c.D; ++j) {
        double sum = i == j ? 0.3 : 0.0;
        for (std::int64_t l = 0; l < c.D; ++l) {
          sum += a.data<double>()[(s * c.D + i) * c.D + l] *
                 a.data<double>()[(s * c.D + j) * c.D + l] / double(c.D);
        }
        P.data<double>()[(s * c.D + i) * c.D + j] = sum;
      }
    }
  }
  made.put("metric", Tensor::copy(P, wide));
}

inline bool sums_to_one(const Weighting& weighting) {
  const auto* decay = std::get_if<Decay>(&weighting);
  return std::holds_alternative<Softmax>(weighting) || std::holds_alternative<Linear>(weighting) ||
         (decay && !decay->content);
}

/// Every output the mechanism has, freshly made inside `made`.
inline Outputs all_outputs(Made& made, const Options& how) {
  const Case& c = made.c;
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Shape rows{c.B, c.H, c.N};
  Outputs to;
  to.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
  if (std::holds_alternative<Softmax>(how.weighting)) to.lse = made.fresh("lse", rows, wide);
  to.concentration = made.fresh("concentration", rows, wide);
  to.effective_keys = made.fresh("effective_keys", rows, wide);
  if (sums_to_one(how.weighting)) to.entropy = made.fresh("entropy", rows, wide);
  to.largest = made.fresh("largest", rows, wide);
  to.largest_at = made.fresh("largest_at", rows, DType::i64);
  const Shape metric = metric_shape(made.inputs(), how);
  if (!metric.empty()) to.metric = made.fresh("metric_used", metric, wide);
  return to;
}

inline Gradients all_gradients(Made& made, const Options& how) {
  const Case& c = made.c;
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  Gradients to;
  to.d_o = made.find("d_o");
  to.dq = made.fresh("dq", {c.B, c.H, c.N, c.D}, made.dtype);
  to.dk = made.fresh("dk", {c.B, c.G, c.M, c.D}, made.dtype);
  to.dv = made.fresh("dv", {c.B, c.G, c.M, c.E}, made.dtype);
  to.dv_prev = made.fresh("dv_prev", {c.B, c.G, c.M, c.E}, made.dtype);
  const Shape metric = metric_shape(made.inputs(), how);
  if (!metric.empty()) to.dmetric = made.fresh("dmetric", metric, wide);
  if (const View bias = made.find("key_bias"))
    to.dkey_bias = made.fresh("dkey_bias", {bias.sizes().begin(), bias.sizes().end()}, wide);
  return to;
}

/// Everything there is, forward and backward.
inline void run(Made& made, const Options& how) {
  const Outputs to = all_outputs(made, how);
  attend(to, made.inputs(), how);
  attend_backward(all_gradients(made, how), made.inputs(), to, how);
}

/// Names of what all_outputs and all_gradients made, those that are there.
inline std::vector<std::string> results(const Made& made) {
  std::vector<std::string> names;
  for (const char* name :
       {"o", "lse", "concentration", "effective_keys", "entropy", "largest", "largest_at",
        "metric_used", "dq", "dk", "dv", "dv_prev", "dmetric", "dkey_bias"}) {
    if (made.find(name)) names.push_back(name);
  }
  return names;
}

}  // namespace foci::cases
