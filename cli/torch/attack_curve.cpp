// SPDX-License-Identifier: Apache-2.0
// Accuracy by eps as a line chart.
#include "cli/torch/attack_folder.hpp"

#include <foci/pictures.hpp>

#include <fmt/core.h>

namespace foci::cli {

std::string curve_svg(const Attacked& subject, const std::vector<Judged>& judged) {
  const auto percent = [](const at::Tensor& flags) {
    return 100 * flags.to(at::kFloat).mean().item<double>();
  };
  std::vector<double> eps = {0};
  for (const Judged& j : judged) eps.push_back(j.reach.eps);
  // In the unit that --eps has: "linf 8/255" is 8 of 255.
  const std::string& text = judged.back().reach.text;
  const bool of_255 = text.ends_with("/255");
  for (double& value : eps) value *= of_255 ? 255 : 1;
  report::LineChart chart{
      .title = "Accuracy under attack",
      .about =
          "The share of images that stay right, by how far an attack may "
          "move each.",
      .x = {.name = "eps, " + text.substr(0, text.find(' ')) + (of_255 ? ", in 255ths" : ""),
            .from = 0},
      .y = {.name = "accuracy, %", .from = 0, .to = 100}};
  const double clean = percent(judged[0].arms[0].clean);
  for (std::size_t a = 0; a < subject.arms.size() && subject.arms.size() > 1; ++a) {
    report::Series arm{.name = subject.arms[a].name, .x = eps, .y = {clean}};
    for (const Judged& j : judged) arm.y.push_back(percent(j.arms[a].robust));
    chart.series.push_back(std::move(arm));
  }
  report::Series worst{.name = chart.series.empty() ? "robust" : "worst case", .x = eps};
  worst.y = {clean};
  for (const Judged& j : judged) worst.y.push_back(100 * j.accuracy);
  chart.series.push_back(std::move(worst));
  return report::draw(chart);
}

}  // namespace foci::cli
