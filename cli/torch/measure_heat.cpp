// SPDX-License-Identifier: Apache-2.0
// Which rows of weights stand in which heat-map, and what they are called.
#include "cli/torch/measure_heat.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace foci::cli {
namespace {

constexpr std::size_t most_classes = 8, classes_in_row = 4;

std::int64_t patches_of(const measure::Grid& grid) { return grid.height * grid.width; }

/// The weights of those keys that stand on the grid.
report::Heat heat_of(std::string name, const Numbers& row, const measure::Grid& grid) {
  const auto first = row.begin() + grid.leading;
  return {.name = std::move(name),
          .rows = int(grid.height),
          .columns = int(grid.width),
          .weights = {first, first + patches_of(grid)}};
}

/// The first token behind the patches, where a layer has one for each class; else -1.
std::int64_t first_class(const Pictured& of, const AttentionView& view, std::int64_t layer) {
  const measure::Grid grid = grid_at(of.grids, layer);
  const std::int64_t behind = grid.leading + patches_of(grid);
  const bool has = !of.classes.empty() && patches_of(grid) > 0 &&
                   view.queries(layer) == behind + std::int64_t(of.classes.size());
  return has ? behind : -1;
}

/// What another layer calls the same token; -1 where it has none.
std::int64_t query_in(const Pictured& of, const AttentionView& view, const Place& place,
                      std::int64_t layer) {
  const measure::Grid from = grid_at(of.grids, place.layer), to = grid_at(of.grids, layer);
  const std::int64_t patch = place.query - from.leading;
  if (patch >= 0 && patch < patches_of(from)) return to.leading + patch;
  return view.queries(layer) == view.queries(place.layer) ? place.query : -1;
}

}  // namespace

std::string Place::words() const {
  const std::string heads = head < 0 ? "mean over heads" : fmt::format("head {}", head);
  return fmt::format("layer {}, {}, query {}{}", layer, heads, query,
                     token.empty() ? "" : fmt::format(" ({})", token));
}

Place place_of(const PictureWish& wish, const Pictured& of, const AttentionView& view) {
  const auto among = [](const char* what, std::int64_t number, std::int64_t count) {
    if (number < count) return;
    throw InvalidArgument(
        fmt::format("--{} {} is none of {}; they count from 0", what, number, count));
  };
  Place place;
  std::int64_t top = view.layers() - 1;  // of a segmenter's encoder: classes_sheet has the rest
  while (top > 0 && first_class(of, view, top) >= 0) --top;
  place.layer = wish.layer < 0 ? top : wish.layer;
  among("in-layer", place.layer, view.layers());
  place.head = wish.head;
  among("head", place.head, view.heads(place.layer));
  const measure::Grid grid = grid_at(of.grids, place.layer);
  const std::int64_t count = view.queries(place.layer);
  const std::int64_t middle = grid.leading + grid.height / 2 * grid.width + grid.width / 2;
  const bool by_class_token = grid.leading > 0 && of.classes.empty();
  const std::int64_t usual = grid.height == 0 ? count - 1 : by_class_token ? 0 : middle;
  place.query = wish.query < 0 ? usual : wish.query;
  among("query", place.query, count);
  if (grid.height > 0 && grid.leading > 0 && place.query == 0) place.token = "class token";
  const std::int64_t classes = first_class(of, view, place.layer);
  if (classes >= 0 && place.query >= classes)
    place.token = "class " + of.classes[std::size_t(place.query - classes)];
  return place;
}

bool on_image(const Pictured& of, const AttentionView& view, std::int64_t layer) {
  const measure::Grid grid = grid_at(of.grids, layer);
  return of.image && grid.height > 0 && grid.leading + patches_of(grid) <= view.keys(layer);
}

std::optional<report::Cell> cell_of(const measure::Grid& grid, std::int64_t query) {
  const std::int64_t patch = query - grid.leading;
  if (patch < 0 || patch >= patches_of(grid)) return {};
  return report::Cell{int(patch / grid.width), int(patch % grid.width)};
}

report::Heat one_heat(const std::string& label, const Pictured& of, const AttentionView& view,
                      const Place& place) {
  return heat_of(label, view.row(place.layer, place.head, place.query),
                 grid_at(of.grids, place.layer));
}

report::HeatSheet query_sheet(const Pictured& of, const AttentionView& view, const Place& place) {
  report::HeatSheet sheet{.title = of.name + ": " + place.words(),
                          .about = "Attention weights over the image.",
                          .range = report::Range::own};
  if (!on_image(of, view, place.layer)) return sheet;
  const measure::Grid grid = grid_at(of.grids, place.layer);
  report::HeatRow row{.name = of.sample,
                      .image = *of.image,
                      .query = cell_of(grid, place.query),
                      .query_name = place.token};
  const std::string metric = view.metric(place.layer);
  if (metric != "dot")
    row.heats.push_back(
        heat_of("under dot", view.plain_row(place.layer, place.head, place.query), grid));
  row.heats.push_back(one_heat(metric, of, view, place));
  const Numbers rolled = view.rollout_row(place.layer, place.query, of.grids);
  if (!rolled.empty() && on_image(of, view, 0))
    row.heats.push_back(heat_of("rollout", rolled, grid_at(of.grids, 0)));
  sheet.rows.push_back(std::move(row));
  return sheet;
}

report::HeatSheet heads_sheet(const Pictured& of, const AttentionView& view, const Place& place) {
  const std::string of_layer = of.classes.empty() ? "" : fmt::format(" of layer {}", place.layer);
  report::HeatSheet sheet{
      .title = fmt::format("{}: all heads, query {}{}{}", of.name, place.query,
                           place.token.empty() ? "" : fmt::format(" ({})", place.token), of_layer),
      .overlay = report::Overlay::patches,
      .range = report::Range::own,
      .side = 96};
  for (std::int64_t layer = 0; layer < view.layers(); ++layer) {
    const measure::Grid grid = grid_at(of.grids, layer);
    const std::int64_t query = query_in(of, view, place, layer);
    if (!on_image(of, view, layer) || query < 0 || query >= view.queries(layer)) continue;
    report::HeatRow all{.name = fmt::format("layer {}", layer),
                        .image = *of.image,
                        .query = cell_of(grid, query),
                        .query_name = place.token};
    for (std::int64_t head = 0; head < view.heads(layer); ++head)
      all.heats.push_back(
          heat_of(fmt::format("head {}", head), view.row(layer, head, query), grid));
    sheet.rows.push_back(std::move(all));
  }
  return sheet;
}

report::HeatSheet classes_sheet(const Pictured& of, const AttentionView& view, const Place& place) {
  const std::int64_t layer =
      first_class(of, view, place.layer) < 0 ? view.layers() - 1 : place.layer;
  const std::int64_t first = first_class(of, view, layer);
  report::HeatSheet sheet{.about = "What the token of each class looks at, over the image.",
                          .range = report::Range::own};
  if (first < 0 || !on_image(of, view, layer)) return sheet;
  const std::int64_t head = place.layer == layer ? place.head : -1;
  const std::string heads = head < 0 ? "mean over heads" : fmt::format("head {}", head);
  sheet.title = fmt::format("{}: class tokens of layer {}, {}", of.name, layer, heads);
  const measure::Grid grid = grid_at(of.grids, layer);
  const std::string metric = view.metric(layer);
  const std::size_t count = std::min(most_classes, of.present.size());
  for (std::size_t begin = 0; begin < count; begin += classes_in_row) {
    report::HeatRow plain{.name = "under dot", .image = *of.image};
    report::HeatRow own{.name = metric, .image = *of.image};
    for (std::size_t i = begin; i < std::min(count, begin + classes_in_row); ++i) {
      const std::int64_t query = first + of.present[i];
      const std::string& name = of.classes[std::size_t(of.present[i])];
      plain.heats.push_back(heat_of(name, view.plain_row(layer, head, query), grid));
      own.heats.push_back(heat_of(name, view.row(layer, head, query), grid));
    }
    if (metric != "dot") sheet.rows.push_back(std::move(plain));
    sheet.rows.push_back(std::move(own));
  }
  return sheet;
}

}  // namespace foci::cli
