// SPDX-License-Identifier: Apache-2.0
// The curves of foci theory.
#include "cli/theory_curves.hpp"

#include "cli/misuse.hpp"

#include <foci/error.hpp>
#include <foci/theory.hpp>

#include <fmt/core.h>

#include <fstream>

namespace foci::cli {
namespace {

constexpr double left = 56, top = 24, width = 460, height = 300;
constexpr int points = 160;

double concentration_of(const std::string& weighting, const theory::Scores& scores) {
  if (weighting == "softmax") return theory::concentration(theory::Softmax{scores});
  if (weighting == "identity") return theory::concentration(theory::Identity{scores});
  return theory::concentration(theory::Relu2{scores});
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     text);
}

std::string axes(const std::string& weighting, double most) {
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 380\" font-size=\"13\" "
      "font-family=\"sans-serif\">\n"
      "<style>svg{background:#fff;fill:#222}@media(prefers-color-scheme:dark)"
      "{svg{background:#1b1b1b;fill:#ddd}}</style>\n";
  for (int i = 0; i <= 4; ++i) {
    const double x = left + width * i / 4, y = top + height * (1 - i / 4.0);
    svg += fmt::format("<path d=\"M{} {:.1f}h{}\" stroke=\"#888\" stroke-opacity=\".4\"/>\n", left,
                       y, width);
    svg += text_at(left - 8, y + 4, "end", fmt::format("{:.2f}", i / 4.0));
    svg += text_at(x, top + height + 20, "middle", fmt::format("{:.3g}", most * i / 4));
  }
  svg += text_at(left + width / 2, top + height + 42, "middle", "γ, the spread of the scores");
  return svg + text_at(left, top - 8, "start", "concentration S, " + weighting);
}

}  // namespace

std::vector<GammaCurve> curves_over_gamma(const std::string& weighting, double most) {
  if (!(most > 0)) throw Misuse(fmt::format("--curve needs --gamma above 0, not {}", most));
  std::vector<GammaCurve> curves;
  for (const double beta : {2.0, 1.0, 0.0, -1.0, -2.0}) {
    if (weighting == "softmax" && beta != 0) continue;
    GammaCurve curve{.beta = beta};
    for (int i = 1; i <= points; ++i) {
      curve.gammas.push_back(most * i / points);
      curve.concentrations.push_back(concentration_of(weighting, {beta, curve.gammas.back()}));
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

Json json_of(const std::vector<GammaCurve>& curves) {
  Json list = Json::array();
  for (const GammaCurve& curve : curves) {
    list.push_back(
        {{"beta", curve.beta}, {"gamma", curve.gammas}, {"concentration", curve.concentrations}});
  }
  return list;
}

void write_curves(const std::string& path, const std::string& weighting,
                  const std::vector<GammaCurve>& curves) {
  constexpr const char* colours[] = {"#e69f00", "#56b4e9", "#009e73", "#d55e00", "#cc79a7"};
  const double most = curves[0].gammas.back();
  std::string svg = axes(weighting, most);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    std::string line;
    for (std::size_t k = 0; k < curves[i].gammas.size(); ++k) {
      line += fmt::format("{:.1f},{:.1f} ", left + width * curves[i].gammas[k] / most,
                          top + height * (1 - curves[i].concentrations[k]));
    }
    svg +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.5\"/>\n",
                    line, colours[i]);
    const double y = top + 14 + 20 * double(i);
    svg += fmt::format("<path d=\"M{} {:.1f}h22\" stroke=\"{}\" stroke-width=\"2.5\"/>\n",
                       left + width + 12, y - 4, colours[i]);
    const bool looks = weighting != "softmax";
    svg += text_at(left + width + 40, y, "start",
                   looks ? fmt::format("β = {:g}", curves[i].beta) : "any β");
  }
  std::ofstream file(path);
  file << svg << "</svg>\n";
  file.close();
  if (!file) throw FileError(fmt::format("{}: cannot be written", path));
}

}  // namespace foci::cli
