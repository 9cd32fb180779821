// SPDX-License-Identifier: Apache-2.0
// Draws the pictures of docs/concentration.md: S in closed form from the library, what was measured
// of trained models from the file that bench/concentration.py writes.
// Usage: draw_concentration FILE FOLDER
#include <foci/pictures.hpp>
#include <foci/theory.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <iostream>
#include <map>

namespace {

using namespace foci;
using nlohmann::ordered_json;
using Json = ordered_json;

struct Folder {
  std::string path;
  void write(const std::string& name, const std::string& text) const {
    std::ofstream file(path + "/" + name, std::ios::binary);
    file << text;
    if (!file.flush()) throw std::runtime_error("cannot write " + path + "/" + name);
  }
};

template <class F>
report::Series curve(std::string name, double from, double to, int points, F&& f) {
  report::Series series{.name = std::move(name)};
  for (int i = 0; i <= points; ++i) {
    series.x.push_back(from + (to - from) * i / points);
    series.y.push_back(f(series.x.back()));
  }
  return series;
}

void draw_curves(const Folder& folder) {
  report::LineChart chart{
      .title = "How far attention can concentrate",
      .about =
          "Concentration against the spread of the scores: softmax falls to nothing, identity "
          "and relu2 level off.",
      .x = {"γ, the spread of the scores", report::Steps::linear, 0, 4},
      .y = {"concentration S", report::Steps::linear, 0, 1}};
  const auto add = [&](const std::string& name, auto form) {
    chart.series.push_back(curve(name, 0.02, 4, 100,
                                 [&](double gamma) { return theory::concentration(form(gamma)); }));
  };
  add("softmax", [](double g) { return theory::Form(theory::Softmax{{0, g}}); });
  for (const double beta : {1.0, 0.0})
    add(fmt::format("identity, β = {:g}", beta), [=](double g) {
      return theory::Form(theory::Identity{{beta, g}});
    });
  for (const double beta : {1.0, 0.0, -1.0})
    add(fmt::format("relu2, β = {}{:g}", beta < 0 ? "−" : "", std::abs(beta)), [=](double g) {
      return theory::Form(theory::Relu2{{beta, g}});
    });
  folder.write("curves.svg", report::draw(chart));
}

void draw_full(const Folder& folder) {
  report::LineChart chart{
      .title = "A full metric sees fewer keys the larger its head is",
      .about =
          "Concentration of softmax under the inverse covariance of the keys, a query at their "
          "mean, against the size of the head: a straight line on logarithms, flatter when the "
          "temperature grows.",
      .x = {.name = "size of the head D", .from = 0},
      .y = {"concentration S", report::Steps::logarithmic}};
  for (const double tau : {1.0, 2.0, 8.0}) {
    report::Series series{.name = fmt::format("τ = {:g}", tau)};
    for (int D = 16; D <= 256; D += 16) {
      series.x.push_back(D);
      series.y.push_back(theory::concentration(theory::Ellipsoid{D, 0, tau}));
    }
    chart.series.push_back(std::move(series));
  }
  report::Series own{.name = "τ = √D"};
  for (int D = 16; D <= 256; D += 16) {
    own.x.push_back(D);
    own.y.push_back(theory::concentration(theory::Ellipsoid{D, 0, std::sqrt(double(D))}));
  }
  chart.series.push_back(std::move(own));
  folder.write("full.svg", report::draw(chart));
}

/// A number of every layer, by mechanism and seed.
struct Layers {
  std::vector<std::string> order;  ///< of the mechanisms
  std::map<std::string, std::vector<std::vector<double>>> runs;
};

Layers layers_of(const Json& runs, const std::string& part, const std::string& name) {
  Layers layers;
  for (const Json& run : runs) {
    const std::string metric = run.at("metric");
    if (layers.runs.count(metric) == 0) layers.order.push_back(metric);
    std::vector<double> values;
    if (part == "tokens") values.push_back(run.at("embedded").at(name));
    for (const Json& layer : run.at("layers")) values.push_back(layer.at(part).at(name));
    layers.runs[metric].push_back(values);
  }
  return layers;
}

void draw_layers(const Folder& folder, const Json& runs, const std::string& file,
                 const std::string& part, const std::string& name, report::LineChart chart) {
  const Layers layers = layers_of(runs, part, name);
  for (const std::string& metric : layers.order) {
    std::vector<double> x;
    for (std::size_t l = 0; l < layers.runs.at(metric)[0].size(); ++l) x.push_back(double(l));
    chart.series.push_back(report::mean_of(metric, x, layers.runs.at(metric)));
  }
  folder.write(file, report::draw(chart));
}

void draw_runs(const Folder& folder, const Json& runs) {
  if (runs.empty()) return;
  const std::string band = " The bands are one standard deviation over seeds.";
  draw_layers(folder, runs, "collapse.svg", "tokens", "cosine",
              {.title = "Do tokens become alike?",
               .about = "Mean cosine of pairs of tokens by layer, for each mechanism." + band,
               .x = {"blocks passed"},
               .y = {"mean cosine of pairs of tokens"}});
  draw_layers(folder, runs, "rank.svg", "tokens", "effective_rank",
              {.title = "In how many directions do tokens lie?",
               .about = "Effective rank of the tokens by layer, for each mechanism." + band,
               .x = {"blocks passed"},
               .y = {"effective rank"}});
  draw_layers(folder, runs, "concentration.svg", "rows", "concentration",
              {.title = "Does attention concentrate?",
               .about = "Mean concentration of the rows by layer, for each mechanism." + band,
               .x = {"layer"},
               .y = {.name = "concentration S", .to = 1}});
}

/// The metric, and its form where that is not the usual one.
std::string name_of(const Json& picture) {
  const std::string metric = picture.at("metric");
  const bool distance = picture.at("planes").back().at("form") == "distance";
  return distance && metric != "key-covariance" ? metric + ", distance" : metric;
}

report::HeatRow heat_row(const Json& pictures, const std::string& sample) {
  report::HeatRow row{.name = sample};
  for (const Json& picture : pictures) {
    if (picture.at("sample") != sample) continue;
    const Json& image = picture.at("image");
    row.image = data::Image(image.at("height"), image.at("width"), image.at("channels"));
    row.image.pixels = image.at("pixels").get<std::vector<std::uint8_t>>();
    const Json& heat = picture.at("heat");
    if (heat.contains("query")) row.query = report::Cell{heat.at("query")[0], heat.at("query")[1]};
    for (const Json& one : heat.at("heats")) {
      if (one.at("name") != picture.at("metric")) continue;
      row.heats.push_back({.name = name_of(picture),
                           .rows = heat.at("rows"),
                           .columns = heat.at("columns"),
                           .weights = one.at("weights")});
    }
  }
  return row;
}

report::Plane plane_in(const Json& told, const std::string& name) {
  return {.name = name,
          .x_name = told.at("x_name"),
          .y_name = told.at("y_name"),
          .keys = told.at("keys"),
          .weights = told.at("weights"),
          .query = told.at("query"),
          .metric = told.at("metric"),
          .form = told.at("form") == "product" ? Form::product : Form::distance};
}

void draw_pictures(const Folder& folder, const Json& pictures) {
  if (pictures.empty()) return;
  const Json& first = pictures[0];
  report::HeatSheet sheet{
      .title = fmt::format("Layer {}, mean over heads, query {}", first.at("layer").get<int>(),
                           first.at("query").get<int>()),
      .about = "Attention weights of trained models over images, a mechanism a column.",
      .range = report::Range::own,
      .side = 112};
  std::vector<std::string> samples;
  for (const Json& picture : pictures) {
    const std::string sample = picture.at("sample");
    if (std::find(samples.begin(), samples.end(), sample) == samples.end())
      samples.push_back(sample);
  }
  for (const std::string& sample : samples) sheet.rows.push_back(heat_row(pictures, sample));
  data::write_png(folder.path + "/heat.png", report::paint(sheet));
  report::PlaneSheet planes{
      .title =
          fmt::format("Layer {}, head 0: what a query is near to", first.at("layer").get<int>()),
      .about =
          "The keys of one query in the plane that its metric sees most of, for each "
          "mechanism; discs are weights, curves join points of one score."};
  for (const Json& picture : pictures) {
    const std::string name = name_of(picture);
    const bool chosen =
        name == "dot" || name == "layer-change, distance" || name == "key-covariance";
    if (picture.at("sample") == samples[0] && chosen)
      planes.planes.push_back(plane_in(picture.at("planes").back(), name));
  }
  if (!planes.planes.empty()) folder.write("ellipse.svg", report::draw(planes));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::cerr << "usage: draw_concentration FILE FOLDER\n";
    return 2;
  }
  try {
    std::ifstream file(arguments[1]);
    if (!file) throw std::runtime_error(fmt::format("cannot read {}", arguments[1]));
    const Json found = Json::parse(file);
    const Folder folder{arguments[2]};
    draw_curves(folder);
    draw_full(folder);
    draw_runs(folder, found.at("runs"));
    draw_pictures(folder, found.at("pictures"));
  } catch (const std::exception& fault) {
    std::cerr << "draw_concentration: " << fault.what() << "\n";
    return 1;
  }
}
