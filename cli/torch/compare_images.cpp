// SPDX-License-Identifier: Apache-2.0
// Photographs at their own size are thousands of tokens for a model that is meant for small images.
#include "cli/torch/compare_images.hpp"

#include "cli/run_words.hpp"

#include <foci/classify.hpp>
#include <foci/data.hpp>
#include <foci/models.hpp>
#include <foci/subset.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <vector>

namespace foci::cli {
namespace {

constexpr std::int64_t looked_at = 60;                         // images
constexpr std::int64_t small = 32, largest = 64, patches = 8;  // pixels a side; a side

std::int64_t count_in(const Words& words, const char* flag) {
  const auto found = words.find(flag);
  return found == words.end() ? 0 : to_count(found->second);
}

bool is_micro(const ComparePlan& plan) {
  return plan.task == "images" && plan.train.at("model") == "vit_micro";
}

/// What settle_images chooses; 0 where it leaves images alone.
ImageInputs chosen(const ImageSides& sides) {
  if (!sides.is_mixed() && sides.median <= small) return {};
  const std::int64_t side = std::min(sides.median, largest);
  const std::int64_t patch = std::max<std::int64_t>(4, (side + patches - 1) / patches);
  return {std::max(side / patch, std::int64_t(1)) * patch, patch};
}

}  // namespace

ImageSides image_sides(const std::string& data) {
  const data::ImageSet set = data::evenly(data::open_images(data, data::Split::train), looked_at);
  std::vector<std::int64_t> sides;
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const data::Image image = set.image(i);
    sides.push_back(std::min(image.height, image.width));
  }
  std::sort(sides.begin(), sides.end());
  return {sides.front(), sides[sides.size() / 2], sides.back()};
}

void settle_images(ComparePlan& plan, const ImageSides& sides) {
  if (!is_micro(plan)) return;
  const ImageInputs inputs = chosen(sides);
  if (inputs.side == 0 || count_in(plan.train, "image") > 0 || count_in(plan.train, "patch") > 0)
    return;
  plan.train["image"] = std::to_string(inputs.side);
  plan.train["patch"] = std::to_string(inputs.patch);
}

ImageInputs image_inputs(const ComparePlan& plan, const std::string& data) {
  const data::Image first = data::open_images(data, data::Split::train).image(0);
  Words words = plan.train;
  words.merge(Words{{"data", data}, {"run", ""}, {"steps", "1"}});
  const train::ImageModel model = image_training(with_defaults(plan.task, words), {}).model;
  const train::ImageFacts facts{
      .channels = first.channels, .classes = 2, .side = std::min(first.height, first.width)};
  const std::int64_t patch = model.patch > 0 ? model.patch : models::find(model.name).vit.patch;
  return {train::side_of(model, facts), patch};
}

std::string inputs_text(const ImageInputs& inputs, const ImageSides& sides) {
  const std::string of =
      sides.is_mixed()
          ? fmt::format(" (their shorter sides have {} to {} pixels)", sides.least, sides.most)
      : sides.median != inputs.side ? fmt::format(" (of {} pixels)", sides.median)
                                    : "";
  return fmt::format("images become {0} x {0}{1}, patch {2}: {3} tokens", inputs.side, of,
                     inputs.patch, inputs.tokens());
}

Json smaller_images(const ComparePlan& plan, const ImageInputs& inputs, const ImageSides& sides) {
  const ImageInputs own = chosen(sides);
  if (!is_micro(plan) || own.side != inputs.side || own.patch != inputs.patch) return {};
  if (sides.median <= inputs.side) return {};
  return {{"name", "smaller-images"},
          {"means", fmt::format("the images have {} pixels a side, models see {} x {} of them in "
                                "patches of {}, which takes less time",
                                sides.median, inputs.side, inputs.side, inputs.patch)},
          {"do", "--model 'image=128 patch=16' shows them more, and takes longer"}};
}

}  // namespace foci::cli
