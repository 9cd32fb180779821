// SPDX-License-Identifier: Apache-2.0
// The models that have names, and what they cost.
#include <foci/models.hpp>

#include <foci/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace foci::models {
namespace {

VitOptions deit(std::int64_t dim, std::int64_t heads) {
  return {.image = 224, .patch = 16, .dim = dim, .depth = 12, .heads = heads};
}

/// Changes of one letter between two names.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t(0));
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t corner = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, corner + (a[i] != b[j])});
      corner = above;
    }
  }
  return row.back();
}

}  // namespace

const std::vector<Listed>& listed() {
  static const std::vector<Listed> all = {
      {"vit_micro",
       "images",
       "for images of 28 to 64 pixels, on a processor",
       {.image = 28,
        .patch = 4,
        .channels = 1,
        .classes = 10,
        .dim = 64,
        .depth = 4,
        .heads = 4,
        .mlp_ratio = 2}},
      {"deit_tiny_patch16_224", "images", "timm's", deit(192, 3)},
      {"deit_small_patch16_224", "images", "timm's", deit(384, 6)},
      {"deit_base_patch16_224", "images", "timm's", deit(768, 12)},
      {"vit_tiny_patch16_224", "images", "timm's", deit(192, 3)},
      {"vit_small_patch16_224", "images", "timm's", deit(384, 6)},
      {"vit_base_patch16_224", "images", "timm's", deit(768, 12)},
  };
  return all;
}

const Listed& find(std::string_view name) {
  const std::vector<Listed>& all = listed();
  for (const Listed& model : all) {
    if (model.name == name) return model;
  }
  const auto nearest = std::min_element(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return distance(a.name, name) < distance(b.name, name);
  });
  throw InvalidArgument(
      fmt::format("no model is called '{}'; did you mean {}?", name, nearest->name));
}

Size size_of(const VitOptions& o) {
  const std::int64_t side = o.image / o.patch, patches = side * side, tokens = patches + 1;
  const std::int64_t hidden = std::int64_t(double(o.dim) * o.mlp_ratio);
  const std::int64_t pixels = o.channels * o.patch * o.patch;
  const std::int64_t block = 4 * o.dim * o.dim + 2 * o.dim * hidden;  // weights of its products
  const std::int64_t rest = 4 * o.dim + 4 * o.dim + hidden + o.dim;   // biases and norms
  Size size;
  size.parameters = o.depth * (block + rest) + (pixels + 1) * o.dim + (1 + tokens) * o.dim +
                    2 * o.dim + (o.dim + 1) * o.classes;
  size.multiply_adds = double(patches * pixels * o.dim + o.classes * o.dim) +
                       double(o.depth) * double(tokens) * double(block + 2 * tokens * o.dim);
  return size;
}

}  // namespace foci::models
