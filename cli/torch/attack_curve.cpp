// SPDX-License-Identifier: Apache-2.0
// Accuracy by eps as an SVG of its own: no script, no font of its own.
#include "cli/torch/attack_folder.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

namespace foci::cli {
namespace {

constexpr double left = 60, top = 20, width = 520, height = 300;

struct Curve {
  std::string name, colour;
  std::vector<double> shares;  // clean first
};

std::vector<Curve> curves_of(const Attacked& subject, const std::vector<Judged>& judged) {
  constexpr const char* colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7"};
  const auto share = [](const at::Tensor& flags) {
    return flags.to(at::kFloat).mean().item<double>();
  };
  const double clean = share(judged[0].arms[0].clean);
  std::vector<Curve> curves;
  for (std::size_t a = 0; a < subject.arms.size() && subject.arms.size() > 1; ++a) {
    Curve curve{subject.arms[a].name, colours[a % 4], {clean}};
    for (const Judged& j : judged) curve.shares.push_back(share(j.arms[a].robust));
    curves.push_back(curve);
  }
  Curve worst{curves.empty() ? "robust" : "worst case", "#000000", {clean}};
  for (const Judged& j : judged) worst.shares.push_back(j.accuracy);
  curves.push_back(worst);
  return curves;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     text);
}

}  // namespace

std::string curve_svg(const Attacked& subject, const std::vector<Judged>& judged) {
  const double most = std::max(judged.back().reach.eps, 1e-9);
  const auto x_of = [&](double eps) { return left + width * eps / most; };
  const auto y_of = [&](double share) { return top + height * (1 - share); };
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 370\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"640\" height=\"370\" fill=\"#ffffff\"/>\n";
  for (int i = 0; i <= 4; ++i) {
    const double y = y_of(i / 4.0);
    svg += fmt::format("<path d=\"M{} {:.1f}h{}\" stroke=\"#dddddd\"/>\n", left, y, width);
    svg += text_at(left - 6, y + 4, "end", fmt::format("{} %", 25 * i));
  }
  svg += text_at(left, top + height + 18, "middle", "0");
  for (const Judged& j : judged)
    svg += text_at(x_of(j.reach.eps), top + height + 18, "middle",
                   j.reach.text.substr(j.reach.text.find(' ') + 1));
  svg += text_at(left + width / 2, top + height + 40, "middle",
                 "eps, " + judged[0].reach.text.substr(0, judged[0].reach.text.find(' ')));
  double line = top + 14;
  for (const Curve& curve : curves_of(subject, judged)) {
    std::string points = fmt::format("{:.1f},{:.1f}", x_of(0), y_of(curve.shares[0]));
    for (std::size_t i = 0; i < judged.size(); ++i)
      points += fmt::format(" {:.1f},{:.1f}", x_of(judged[i].reach.eps), y_of(curve.shares[i + 1]));
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                       points, curve.colour);
    svg += fmt::format("<g fill=\"{}\">{}</g>\n", curve.colour,
                       text_at(left + width - 4, line, "end", curve.name));
    line += 16;
  }
  return svg + "</svg>\n";
}

}  // namespace foci::cli
