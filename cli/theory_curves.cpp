// SPDX-License-Identifier: Apache-2.0
// The curves of foci theory.
#include "cli/theory_curves.hpp"

#include "cli/misuse.hpp"

#include <foci/theory.hpp>

#include <fmt/core.h>

#include <cmath>

namespace foci::cli {
namespace {

constexpr int points = 160;

double concentration_of(const std::string& kind, const theory::Scores& scores) {
  if (kind == "softmax") return theory::concentration(theory::Softmax{scores});
  if (kind == "identity") return theory::concentration(theory::Identity{scores});
  return theory::concentration(theory::Relu2{scores});
}

bool over_temperature(const std::string& kind) { return kind == "key-covariance"; }

std::string name_of(const std::string& kind, const Curve& curve) {
  if (over_temperature(kind)) return fmt::format("‖z‖² = {:g}", curve.of);
  return kind == "softmax" ? "any β"
                           : fmt::format("β = {}{:g}", curve.of < 0 ? "−" : "", std::abs(curve.of));
}

}  // namespace

std::vector<Curve> curves_over_gamma(const std::string& kind, double most) {
  if (!(most > 0)) throw Misuse(fmt::format("--curve needs --gamma above 0, not {}", most));
  std::vector<Curve> curves;
  for (const double beta : {2.0, 1.0, 0.0, -1.0, -2.0}) {
    if (kind == "softmax" && beta != 0) continue;
    Curve curve{.of = beta};
    for (int i = 1; i <= points; ++i) {
      curve.at.push_back(most * i / points);
      curve.concentrations.push_back(concentration_of(kind, {beta, curve.at.back()}));
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

std::vector<Curve> curves_over_temperature(std::int64_t dim) {
  std::vector<Curve> curves;
  for (const double share : {0.0, 0.5, 1.0, 2.0}) {
    Curve curve{.of = share * double(dim)};
    for (int i = 0; i <= points; ++i) {
      curve.at.push_back(std::pow(10, -1 + 4.0 * i / points));
      curve.concentrations.push_back(
          theory::concentration(theory::Ellipsoid{dim, curve.of, curve.at.back()}));
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

Json json_of(const std::string& kind, const std::vector<Curve>& curves) {
  const bool temperature = over_temperature(kind);
  Json list = Json::array();
  for (const Curve& curve : curves) {
    list.push_back({{temperature ? "distance2" : "beta", curve.of},
                    {temperature ? "temperature" : "gamma", curve.at},
                    {"concentration", curve.concentrations}});
  }
  return list;
}

report::LineChart chart_of(const std::string& kind, const std::vector<Curve>& curves) {
  report::LineChart chart{.title = "Concentration of " + kind, .y = {.name = "concentration S"}};
  chart.x.name = over_temperature(kind) ? "temperature τ = 1/c" : "γ, the spread of the scores";
  if (over_temperature(kind)) chart.x.steps = report::Steps::logarithmic;
  chart.about = "Curves of " + chart.y.name + " over " + chart.x.name + ".";
  for (const Curve& curve : curves)
    chart.series.push_back({name_of(kind, curve), curve.at, curve.concentrations});
  return chart;
}

}  // namespace foci::cli
