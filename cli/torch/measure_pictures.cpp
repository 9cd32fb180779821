// SPDX-License-Identifier: Apache-2.0
// Which pictures a subject has, what stands above them, and the files they become.
#include "cli/torch/measure_pictures.hpp"

#include "cli/mechanism.hpp"
#include "cli/torch/attention_view.hpp"
#include "cli/torch/measure_charts.hpp"
#include "cli/torch/measure_heat.hpp"
#include "cli/write.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

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
    if (!text.empty()) write_whole(named(name), text);
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

void write_sheet(Folder& folder, const std::string& name, const report::HeatSheet& sheet) {
  if (sheet.rows.empty()) return;
  folder.text(name + ".svg", report::draw(sheet));
  folder.png(name + ".png", report::paint(sheet));
}

Json json_of(const std::vector<report::Heat>& heats) {
  Json all = Json::array();
  for (const report::Heat& heat : heats)
    all.push_back({{"name", heat.name}, {"weights", heat.weights}});
  return all;
}

/// What the strips of several subjects are made of.
struct Beside {
  report::HeatRow heat;
  std::vector<report::HeatRow> classes;
  std::vector<report::Plane> planes;
};

void write_heat(Folder& folder, const Pictured& of, const AttentionView& view, const Place& place,
                Json& told, Beside& beside) {
  const report::HeatSheet one = query_sheet(of, view, place);
  if (one.rows.empty()) return;
  const report::HeatRow& row = one.rows[0];
  told["heat"] = {{"rows", row.heats[0].rows},
                  {"columns", row.heats[0].columns},
                  {"heats", json_of(row.heats)}};
  if (row.query) told["heat"]["query"] = {row.query->row, row.query->column};
  told["image"] = {{"height", of.image->height},
                   {"width", of.image->width},
                   {"channels", of.image->channels},
                   {"pixels", of.image->pixels}};
  write_sheet(folder, "heat", one);
  write_sheet(folder, "heads", heads_sheet(of, view, place));
  const report::HeatSheet classes = classes_sheet(of, view, place);
  for (const report::HeatRow& of_classes : classes.rows)
    told["classes"].push_back({{"name", of_classes.name}, {"heats", json_of(of_classes.heats)}});
  write_sheet(folder, "classes", classes);
  for (report::HeatRow row : classes.rows) {
    row.name = of.label + ", " + row.name;
    beside.classes.push_back(std::move(row));
  }
}

void write_plane(Folder& folder, const Pictured& of, const AttentionView& view, const Place& place,
                 Json& told) {
  const std::int64_t head = std::max<std::int64_t>(0, place.head);
  const std::vector<report::Plane> planes = view.planes(place.layer, head, place.query);
  if (planes.empty()) return;
  report::PlaneSheet sheet{
      .title = fmt::format("{}: {}", of.name,
                           Place{place.layer, head, place.query, place.token}.words()),
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

void write_one(Folder& folder, const PictureWish& wish, const Pictured& of,
               const measure::Report& report, Beside& beside) {
  const AttentionView view(of.pass);
  const Place place = place_of(wish, of, view);
  Json told{{"model", of.name},       {"sample", of.sample},  {"layer", place.layer},
            {"head", place.head},     {"query", place.query}, {"metric", view.metric(place.layer)},
            {"planes", Json::array()}};
  folder.text("layers.svg", layers_svg(of, report));
  folder.text("collapse.svg", collapse_svg(of, report));
  write_heat(folder, of, view, place, told, beside);
  write_plane(folder, of, view, place, told);
  write_tokens(folder, of, view, place);
  folder.text("pictures.json", told.dump(1) + "\n");
  auto planes = view.planes(place.layer, std::max<std::int64_t>(0, place.head), place.query);
  if (!planes.empty()) {
    planes.back().name = of.label;
    beside.planes.push_back(std::move(planes.back()));
  }
  if (!on_image(of, view, place.layer)) return;
  beside.heat.name = fmt::format("{}, {}", of.sample, place.words());
  beside.heat.image = *of.image;
  beside.heat.query = cell_of(grid_at(of.grids, place.layer), place.query);
  beside.heat.query_name = place.token;
  beside.heat.heats.push_back(one_heat(of.label, of, view, place));
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
    write_sheet(folder, "heat",
                {.title = "Weights of each",
                 .about = "Attention weights over one image, a model a panel.",
                 .rows = {beside.heat},
                 .range = report::Range::own});
  }
  write_sheet(folder, "classes",
              {.title = "Class tokens of each",
               .about = "What the token of each class looks at, a model a row.",
               .rows = beside.classes,
               .range = report::Range::own});
  folder.text("collapse.svg", collapse_svg(all, reports));
  folder.text("concentration.svg", concentration_svg(all, reports));
  written.insert(written.end(), folder.written.begin(), folder.written.end());
  return written;
}

}  // namespace foci::cli
