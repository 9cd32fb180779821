// SPDX-License-Identifier: Apache-2.0
// The golden files: inputs with float64 answers, and the options their metadata asks for.
#pragma once

#include <foci/call.hpp>
#include <foci/safetensors.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace foci::golden {

inline std::vector<std::string> files() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(FOCI_SOURCE_DIR "/tests/golden")) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

template <class E>
E pick(const nlohmann::json& o, const char* key, E otherwise,
       const std::map<std::string, E>& names) {
  return o.contains(key) ? names.at(o.at(key).get<std::string>()) : otherwise;
}

inline void take_diagonal(const nlohmann::json& o, auto& metric) {
  if constexpr (requires { metric.form; }) {
    metric.form =
        pick(o, "form", Form::product, {{"product", Form::product}, {"distance", Form::distance}});
  }
  if constexpr (requires { metric.normalize; }) {
    metric.normalize =
        pick(o, "normalize", Normalize::max,
             {{"max", Normalize::max}, {"mean", Normalize::mean}, {"none", Normalize::none}});
  }
  if constexpr (requires { metric.reduce; }) {
    metric.reduce =
        pick(o, "reduce", Reduce::mean, {{"mean", Reduce::mean}, {"median", Reduce::median}});
  }
  if constexpr (requires { metric.scope; }) {
    metric.scope = pick(o, "scope", Scope::automatic,
                        {{"sequence", Scope::sequence}, {"prefix", Scope::prefix}});
  }
}

inline Metric metric_of(const nlohmann::json& o) {
  Metric metric = pick<Metric>(o, "metric", Dot{},
                               {{"dot", Dot{}},
                                {"layer-change", LayerChange{}},
                                {"flat", Flat{}},
                                {"jacobian", Jacobian{}},
                                {"key-covariance", KeyCovariance{}}});
  std::visit([&](auto& m) { take_diagonal(o, m); }, metric);
  if (auto* covariance = std::get_if<KeyCovariance>(&metric)) {
    covariance->ridge = o.value("ridge", covariance->ridge);
    if (o.contains("prior")) covariance->prior = o.at("prior").get<double>();
    covariance->period = o.value("period", covariance->period);
  }
  return metric;
}

inline Weighting weighting_of(const nlohmann::json& o) {
  const Rescale rescale = pick(o, "rescale", Rescale::length,
                               {{"length", Rescale::length},
                                {"l1", Rescale::l1},
                                {"l2", Rescale::l2},
                                {"none", Rescale::none}});
  const Feature feature =
      pick(o, "feature", Feature::elu1,
           {{"elu1", Feature::elu1}, {"relu", Feature::relu}, {"exp", Feature::exp}});
  return pick<Weighting>(o, "weighting", Softmax{},
                         {{"softmax", Softmax{}},
                          {"relu2", Relu2{rescale}},
                          {"identity", Identity{rescale}},
                          {"linear", Linear{feature}},
                          {"decay", Decay{o.value("rate", 0.9), o.value("content", false)}}});
}

inline Options options_of(const Safetensors& file) {
  const auto o = nlohmann::json::parse(file.metadata().at("options"));
  Options how{.metric = metric_of(o), .weighting = weighting_of(o)};
  how.causal = o.value("causal", false);
  if (o.contains("scale")) how.scale = o.at("scale").get<double>();
  how.metric_grad = pick(o, "metric-grad", MetricGrad::standard,
                         {{"detached", MetricGrad::detached}, {"through", MetricGrad::through}});
  return how;
}

inline Inputs inputs_of(const Safetensors& file) {
  return {.q = file.find("q"),
          .k = file.find("k"),
          .v = file.find("v"),
          .v_prev = file.find("v_prev"),
          .key_mask = file.find("key_mask"),
          .key_bias = file.find("key_bias"),
          .metric = {},
          .q_offsets = {},
          .k_offsets = {}};
}

}  // namespace foci::golden
