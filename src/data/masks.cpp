// SPDX-License-Identifier: Apache-2.0
// Images with a class for every pixel: two folders whose files go by the same stems, and the rule
// that turns a mask's bytes into classes.
#include "data/folder.hpp"
#include "data/image_set.hpp"
#include "error/listed.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>

namespace foci::data {
namespace {

constexpr int unknown = -1;

std::string stem_of(const std::string& path) { return std::filesystem::path(path).stem().string(); }

/// For every byte its class, `ignored` or unknown.
std::vector<int> table_of(const MaskRule& rule) {
  std::vector<int> table(256, unknown);
  for (std::size_t c = 0; c < rule.classes.size(); ++c) table.at(rule.first + c) = int(c);
  for (const int value : rule.unlabelled) table.at(std::size_t(value)) = ignored;
  return table;
}

void check_rule(const MaskRule& rule) {
  const int count = int(rule.classes.size());
  if (count < 1 || rule.first < 0 || rule.first + count > 255) {
    throw InvalidArgument(fmt::format("{} classes from value {} on; a mask holds values 0 to 254",
                                      count, rule.first));
  }
  for (const int value : rule.unlabelled) {
    if (value < 0 || value > 255 || (value >= rule.first && value < rule.first + count)) {
      throw InvalidArgument(
          fmt::format("unlabelled value {}; it needs a byte that is no class", value));
    }
  }
}

}  // namespace

MaskRule camvid_rule() {
  return {.classes = {"sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car",
                      "pedestrian", "bicyclist"},
          .first = 0,
          .unlabelled = {11}};
}

MaskRule ade20k_rule(const std::string& names) {
  constexpr std::size_t count = 150;
  MaskRule rule{.classes = {}, .first = 1, .unlabelled = {0}};
  if (names.empty()) {
    for (std::size_t c = 1; c <= count; ++c) rule.classes.push_back(std::to_string(c));
    return rule;
  }
  const std::vector<std::string> lines = read_lines(names);
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (std::count(line.begin(), line.end(), ',') < 5) {
      refuse(names,
             fmt::format("line {}: {} has too few fields; it needs Idx,Ratio,Train,Val,Stuff,"
                         "Name",
                         i + 1, in_quotes(line)));
    }
    const std::string name = line.substr(line.rfind(',') + 1);
    rule.classes.push_back(name.substr(0, name.find(';')));
  }
  if (rule.classes.size() != count) {
    refuse(names, fmt::format("names {} classes; ADE20K has {}", rule.classes.size(), count));
  }
  return rule;
}

void apply_rule(Image& mask, const MaskRule& rule, const std::string& name) {
  const std::vector<int> table = table_of(rule);
  for (std::size_t i = 0; i < mask.pixels.size(); ++i) {
    const int to = table[mask.pixels[i]];
    if (to == unknown) {
      refuse(name,
             fmt::format("has {} at row {}, column {}, which is no class; it needs {} to {}{}",
                         mask.pixels[i], i / std::size_t(mask.width), i % std::size_t(mask.width),
                         rule.first, rule.first + int(rule.classes.size()) - 1,
                         rule.unlabelled.empty() ? "" : " or " + listed(rule.unlabelled)));
    }
    mask.pixels[i] = std::uint8_t(to);
  }
}

ImageSet read_mask_folder(const std::string& images, const std::string& masks,
                          const MaskRule& rule) {
  check_rule(rule);
  std::map<std::string, std::string> by_stem;
  for (const std::string& path : images_below(masks)) by_stem[stem_of(path)] = path;
  ImageSet::Contents all;
  all.classes = rule.classes;
  all.rule = rule;
  all.files = images_below(images);
  if (all.files.empty()) refuse(images, "has no images; the split is empty");
  for (const std::string& path : all.files) {
    const auto found = by_stem.find(stem_of(path));
    if (found == by_stem.end()) refuse(path, fmt::format("has no mask in {}", masks));
    all.masks.push_back(found->second);
  }
  return set_of(std::move(all));
}

}  // namespace foci::data
