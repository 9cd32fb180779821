// SPDX-License-Identifier: Apache-2.0
// Which pictures a subject has, what stands above them, and the files they become.
#include "cli/torch/measure_pictures.hpp"

#include "cli/mechanism.hpp"
#include "cli/torch/attention_view.hpp"
#include "cli/torch/measure_charts.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

/// What was asked for, resolved: -1 is left for the mean over heads alone.
struct Place {
  std::int64_t layer = 0, head = -1, query = 0;
  std::string words() const {
    return fmt::format("layer {}, {}, query {}", layer,
                       head < 0 ? "mean over heads" : fmt::format("head {}", head), query);
  }
};

measure::Grid grid_at(const std::vector<measure::Grid>& grids, std::int64_t layer) {
  if (grids.empty()) return {};
  return grids[std::min(std::size_t(layer), grids.size() - 1)];
}

Place place_of(const PictureWish& wish, const Pictured& of, const AttentionView& view) {
  const auto among = [](const char* what, std::int64_t number, std::int64_t count) {
    if (number < count) return;
    throw InvalidArgument(
        fmt::format("--{} {} is none of {}; they count from 0", what, number, count));
  };
  Place place;
  place.layer = wish.layer < 0 ? view.layers() - 1 : wish.layer;
  among("in-layer", place.layer, view.layers());
  place.head = wish.head;
  among("head", place.head, view.heads(place.layer));
  const measure::Grid grid = grid_at(of.grids, place.layer);
  const std::int64_t count = view.queries(place.layer);
  const std::int64_t usual = grid.height == 0   ? count - 1
                             : grid.leading > 0 ? 0
                                                : grid.height / 2 * grid.width + grid.width / 2;
  place.query = wish.query < 0 ? usual : wish.query;
  among("query", place.query, count);
  return place;
}

/// Writes files of one folder and remembers them.
class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {
    std::error_code fault;
    fs::create_directories(path_, fault);
    if (fault)
      throw FileError(fmt::format("{}: cannot be made a folder: {}", path_, fault.message()));
  }
  /// Nothing of an empty text.
  void text(const std::string& name, const std::string& text) {
    if (text.empty()) return;
    const std::string path = named(name);
    std::ofstream file(path + ".part", std::ios::binary);
    file << text;
    file.close();
    std::error_code fault;
    if (file) fs::rename(path + ".part", path, fault);
    if (!file || fault) throw FileError(path + ": cannot be written");
  }
  void png(const std::string& name, const data::Image& image) {
    data::write_png(named(name), image);
  }
  std::vector<std::string> written;

 private:
  std::string named(const std::string& name) {
    written.push_back(path_ + "/" + name);
    return written.back();
  }
  std::string path_;
};

/// The weights of those keys that stand on the grid.
report::Heat heat_of(std::string name, const Numbers& row, const measure::Grid& grid) {
  const auto first = row.begin() + grid.leading;
  return {.name = std::move(name),
          .rows = int(grid.height),
          .columns = int(grid.width),
          .weights = {first, first + grid.height * grid.width}};
}

bool on_grid(const measure::Grid& grid, std::int64_t keys) {
  return grid.height > 0 && grid.leading + grid.height * grid.width <= keys;
}

std::optional<report::Cell> cell_of(const measure::Grid& grid, std::int64_t query) {
  const std::int64_t patch = query - grid.leading;
  if (patch < 0 || patch >= grid.height * grid.width) return {};
  return report::Cell{int(patch / grid.width), int(patch % grid.width)};
}

void write_heat(Folder& folder, const Pictured& of, const AttentionView& view, const Place& place,
                Json& told) {
  const measure::Grid grid = grid_at(of.grids, place.layer);
  if (!of.image || !on_grid(grid, view.keys(place.layer))) return;
  report::HeatRow row{.name = of.sample, .image = *of.image, .query = cell_of(grid, place.query)};
  const std::string metric = view.metric(place.layer);
  if (metric != "dot")
    row.heats.push_back(
        heat_of("under dot", view.plain_row(place.layer, place.head, place.query), grid));
  row.heats.push_back(heat_of(metric, view.row(place.layer, place.head, place.query), grid));
  const Numbers rolled = view.rollout_row(place.layer, place.query);
  if (!rolled.empty()) row.heats.push_back(heat_of("rollout", rolled, grid));
  Json heats = Json::array();
  for (const report::Heat& heat : row.heats)
    heats.push_back({{"name", heat.name}, {"weights", heat.weights}});
  told["heat"] = {{"rows", grid.height}, {"columns", grid.width}, {"heats", heats}};
  if (row.query) told["heat"]["query"] = {row.query->row, row.query->column};
  told["image"] = {{"height", of.image->height},
                   {"width", of.image->width},
                   {"channels", of.image->channels},
                   {"pixels", of.image->pixels}};
  report::HeatSheet sheet{.title = of.name + ": " + place.words(),
                          .about = "Attention weights over the image.",
                          .rows = {row},
                          .range = report::Range::own};
  folder.text("heat.svg", report::draw(sheet));
  folder.png("heat.png", report::paint(sheet));
  report::HeatSheet heads{.title = of.name + ": all heads, query " + std::to_string(place.query),
                          .overlay = report::Overlay::patches,
                          .range = report::Range::own,
                          .side = 96};
  for (std::int64_t layer = 0; layer < view.layers(); ++layer) {
    const measure::Grid own = grid_at(of.grids, layer);
    if (!on_grid(own, view.keys(layer)) || place.query >= view.queries(layer)) continue;
    report::HeatRow all{.name = fmt::format("layer {}", layer),
                        .image = *of.image,
                        .query = cell_of(own, place.query)};
    for (std::int64_t head = 0; head < view.heads(layer); ++head)
      all.heats.push_back(
          heat_of(fmt::format("head {}", head), view.row(layer, head, place.query), own));
    heads.rows.push_back(std::move(all));
  }
  folder.png("heads.png", report::paint(heads));
}

void write_plane(Folder& folder, const Pictured& of, const AttentionView& view, const Place& place,
                 Json& told) {
  const std::int64_t head = std::max<std::int64_t>(0, place.head);
  const std::vector<report::Plane> planes = view.planes(place.layer, head, place.query);
  if (planes.empty()) return;
  report::PlaneSheet sheet{
      .title =
          fmt::format("{}: layer {}, head {}, query {}", of.name, place.layer, head, place.query),
      .about = "A query, its keys with discs as large as their weights, and curves of one score.",
      .planes = planes};
  folder.text("ellipse.svg", report::draw(sheet));
  for (const report::Plane& plane : planes) {
    told["planes"].push_back({{"name", plane.name},
                              {"x_name", plane.x_name},
                              {"y_name", plane.y_name},
                              {"keys", plane.keys},
                              {"weights", plane.weights},
                              {"query", plane.query},
                              {"metric", plane.metric},
                              {"form", plane.form == Form::product ? "product" : "distance"}});
  }
}

/// At most so many tokens on a map with names, and in a tinted text: the last ones up to the query.
constexpr std::int64_t mapped = 40, tinted = 160;

void write_tokens(Folder& folder, const Pictured& of, const AttentionView& view,
                  const Place& place) {
  const std::int64_t count = view.keys(place.layer);
  const bool known = std::int64_t(of.tokens.size()) == count;
  if (of.image || count != view.queries(place.layer)) return;
  const auto all = known ? of.tokens : counted(count);  // words, or places
  const auto names = [&](std::int64_t first, std::int64_t some) {
    return std::vector<std::string>(all.begin() + first, all.begin() + first + some);
  };
  const auto begin_of = [&](std::int64_t most) {
    return std::clamp<std::int64_t>(place.query + 1 - most, 0,
                                    std::max<std::int64_t>(0, count - most));
  };
  const std::int64_t first = begin_of(mapped), some = std::min(mapped, count);
  report::TokenMap map{.title = of.name + ": " + place.words(),
                       .about = "What each token gives to each other one.",
                       .queries = names(first, some),
                       .keys = names(first, some),
                       .weights = view.square(place.layer, place.head, first, some)};
  folder.text("tokens.svg", report::draw(map));
  if (!known) return;
  const std::int64_t from = begin_of(tinted), length = std::min(tinted, count);
  report::TextSheet sheet{.title = of.name + ": " + place.words(),
                          .about = "A text whose tokens are tinted by what one of them gives.",
                          .range = report::Range::own,
                          .width = 760};
  const auto add = [&](std::string name, const Numbers& row) {
    sheet.texts.push_back({.name = std::move(name),
                           .tokens = names(from, length),
                           .weights = {row.begin() + from, row.begin() + from + length},
                           .query = std::size_t(place.query - from)});
  };
  const std::string metric = view.metric(place.layer);
  if (metric != "dot") add("under dot", view.plain_row(place.layer, place.head, place.query));
  add(metric, view.row(place.layer, place.head, place.query));
  folder.text("text.svg", report::draw(sheet));
}

/// What the strip of several subjects is made of.
struct Beside {
  report::HeatRow heat;
  std::vector<report::Plane> planes;
};

void write_one(Folder& folder, const PictureWish& wish, const Pictured& of,
               const measure::Report& report, Beside& beside) {
  const AttentionView view(of.pass);
  const Place place = place_of(wish, of, view);
  Json told{{"model", of.name},       {"sample", of.sample},  {"layer", place.layer},
            {"head", place.head},     {"query", place.query}, {"metric", view.metric(place.layer)},
            {"planes", Json::array()}};
  folder.text("layers.svg", layers_svg(of, report));
  folder.text("collapse.svg", collapse_svg(of, report));
  write_heat(folder, of, view, place, told);
  write_plane(folder, of, view, place, told);
  write_tokens(folder, of, view, place);
  folder.text("pictures.json", told.dump(1) + "\n");
  const measure::Grid grid = grid_at(of.grids, place.layer);
  auto planes = view.planes(place.layer, std::max<std::int64_t>(0, place.head), place.query);
  if (!planes.empty()) {
    planes.back().name = of.label;
    beside.planes.push_back(std::move(planes.back()));
  }
  if (!of.image || !on_grid(grid, view.keys(place.layer))) return;
  beside.heat.name = fmt::format("{}, {}", of.sample, place.words());
  beside.heat.image = *of.image;
  beside.heat.query = cell_of(grid, place.query);
  beside.heat.heats.push_back(
      heat_of(of.label, view.row(place.layer, place.head, place.query), grid));
}

}  // namespace

std::vector<std::string> write_pictures(const PictureWish& wish, const std::vector<Pictured>& all,
                                        const std::vector<const measure::Report*>& reports) {
  std::vector<std::string> written;
  Beside beside;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Folder folder(all.size() == 1 ? wish.folder : fmt::format("{}/{}", wish.folder, i));
    write_one(folder, wish, all[i], *reports[i], beside);
    written.insert(written.end(), folder.written.begin(), folder.written.end());
  }
  if (all.size() == 1) return written;
  Folder folder(wish.folder);
  if (!beside.planes.empty()) {
    folder.text("ellipse.svg",
                report::draw(report::PlaneSheet{.title = "One query of each",
                                                .about = "Keys of one query, a model a panel.",
                                                .planes = beside.planes}));
  }
  if (beside.heat.heats.size() == all.size()) {
    const report::HeatSheet sheet{.title = "Weights of each",
                                  .about = "Attention weights over one image, a model a panel.",
                                  .rows = {beside.heat},
                                  .range = report::Range::own};
    folder.text("heat.svg", report::draw(sheet));
    folder.png("heat.png", report::paint(sheet));
  }
  folder.text("collapse.svg", collapse_svg(all, reports));
  folder.text("concentration.svg", concentration_svg(all, reports));
  written.insert(written.end(), folder.written.begin(), folder.written.end());
  return written;
}

}  // namespace foci::cli
