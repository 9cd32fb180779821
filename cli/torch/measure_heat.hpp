// SPDX-License-Identifier: Apache-2.0
// Heat-maps over the image of a sample: one query, the same in all heads, and the class tokens of a
// segmenter's mask transformer. Which pictures become files is measure_pictures'.
#pragma once

#include "cli/torch/attention_view.hpp"
#include "cli/torch/measure_pictures.hpp"

#include <optional>
#include <string>

namespace foci::cli {

/// What was asked for, resolved: -1 is left for the mean over heads alone.
struct Place {
  std::int64_t layer = 0, head = -1, query = 0;
  std::string token = {};  ///< what the query is called
  std::string words() const;
};
/// Throws InvalidArgument for a layer, head or query that is none.
Place place_of(const PictureWish& wish, const Pictured& of, const AttentionView& view);

/// Whether a layer's keys stand on the sample's image.
bool on_image(const Pictured& of, const AttentionView& view, std::int64_t layer);

/// One query: under dot, as it is, and rolled out; without rows where it has no image.
report::HeatSheet query_sheet(const Pictured& of, const AttentionView& view, const Place& place);
/// The same query in every layer and head that has it.
report::HeatSheet heads_sheet(const Pictured& of, const AttentionView& view, const Place& place);
/// What each class of the sample looks at in the layer, or in the top one where that has none;
/// without rows where there are no class tokens.
report::HeatSheet classes_sheet(const Pictured& of, const AttentionView& view, const Place& place);
/// One query of several models; `label` names this one.
report::Heat one_heat(const std::string& label, const Pictured& of, const AttentionView& view,
                      const Place& place);
std::optional<report::Cell> cell_of(const measure::Grid& grid, std::int64_t query);

}  // namespace foci::cli
