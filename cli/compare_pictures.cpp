// SPDX-License-Identifier: Apache-2.0
// Heat-maps and planes of keys of results.json, a file each: the last layer and head 0 for a query
// in the middle; the page has all others.
#include "cli/compare_parts.hpp"

#include <foci/pictures.hpp>

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace foci::cli {
namespace {

std::vector<std::uint8_t> bytes_in(const std::string& base64) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : base64) {
    const std::size_t digit = digits.find(c);
    if (digit == digits.npos) break;
    bits = bits << 6 | std::uint32_t(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(std::uint8_t(bits >> count));
  }
  return bytes;
}

data::Image image_of(const Json& map) {
  data::Image image(map.at("height").get<int>(), map.at("side").get<int>(),
                    map.at("channels").get<int>());
  const auto pixels = bytes_in(map.at("pixels"));
  if (pixels.size() == image.pixels.size()) image.pixels = pixels;
  return image;
}

/// Shares of what the query gives to patches, of the last layer and head 0.
report::Heat heat_of(const std::string& mechanism, const Json& map, std::size_t query) {
  const Json& weights = map.at("weights").at(mechanism);
  const std::size_t tokens = map.at("tokens"), prefix = map.at("prefix"), rows = map.at("grid");
  const std::size_t layers = weights.at("layers"), heads = weights.at("heads");
  const auto bytes = bytes_in(weights.at("data"));
  const std::size_t begin = ((layers - 1) * heads * tokens + query) * tokens;
  report::Heat heat{mechanism, int(rows), int((tokens - prefix) / rows), {}};
  if (bytes.size() < begin + tokens) return heat;
  const auto row = bytes.begin() + std::ptrdiff_t(begin);
  const double sum = std::accumulate(row, row + std::ptrdiff_t(tokens), 0.0);
  for (std::size_t key = prefix; key < tokens; ++key)
    heat.weights.push_back(row[std::ptrdiff_t(key)] / std::max(sum, 1.0));
  return heat;
}

report::HeatRow heat_row(const Json& map) {
  const std::size_t tokens = map.at("tokens"), prefix = map.at("prefix"), rows = map.at("grid");
  const std::size_t columns = (tokens - prefix) / rows;
  const std::size_t place = rows / 2 * columns + columns / 2;
  report::HeatRow row{.name = map.at("label").get<std::string>(),
                      .image = image_of(map),
                      .query = report::Cell{int(place / columns), int(place % columns)}};
  for (const auto& [mechanism, weights] : map.at("weights").items())
    row.heats.push_back(heat_of(mechanism, map, prefix + place));
  return row;
}

Form form_of(const Json& results, const std::string& mechanism) {
  std::string form, metric;
  for (const Json& one : results.at("mechanisms")) {
    if (one.at("name") != mechanism) continue;
    form = one.at("words").value("form", "");
    metric = one.at("words").value("metric", "");
  }
  if (form.empty()) form = metric == "key-covariance" || metric == "learned-full" ? "distance" : "";
  return form == "distance" ? Form::distance : Form::product;
}

report::Plane plane_in(const Json& results, const Json& ellipse) {
  const std::string mechanism = ellipse.at("mechanism");
  report::Plane plane{.name = mechanism, .form = form_of(results, mechanism)};
  plane.x_name = fmt::format("coordinate {}", ellipse.at("axes")[0].dump());
  plane.y_name = fmt::format("coordinate {}", ellipse.at("axes")[1].dump());
  for (const Json& key : ellipse.at("keys")) {
    for (const Json& x : key) plane.keys.push_back(x);
  }
  for (const Json& weight : ellipse.at("weights"))
    plane.weights.push_back(weight.is_number() ? std::abs(weight.get<double>()) : 0);
  plane.query = ellipse.at("query").get<std::array<double, 2>>();
  const Json& m = ellipse.at("metric");
  plane.metric = {m[0][0], m[0][1], m[1][0], m[1][1]};
  return plane;
}

}  // namespace

std::string heat_figure(const Json& results) {
  report::HeatSheet sheet{.title = "What one query looks at",
                          .about =
                              "The weights of a query in the middle, last layer, head 0, of "
                              "each mechanism's first run.",
                          .overlay = report::Overlay::patches};
  for (const Json& map : results.at("maps")) {
    if (map.value("grid", 0) > 0 && !map.at("weights").empty()) sheet.rows.push_back(heat_row(map));
  }
  return sheet.rows.empty() ? "" : report::draw(sheet);
}

std::string plane_figure(const Json& results, const Json& layer) {
  report::PlaneSheet sheet{
      .title = fmt::format("Keys and the metric, layer {}", layer.dump()),
      .about = "Keys and one query of head 0 in two of its coordinates, of each mechanism."};
  for (const Json& ellipse : results.at("ellipses")) {
    if (ellipse.at("layer") == layer) sheet.planes.push_back(plane_in(results, ellipse));
  }
  return report::draw(sheet);
}

}  // namespace foci::cli
