// SPDX-License-Identifier: Apache-2.0
// The models that have names, and what they cost.
#include "models/blocks.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace foci::models {
namespace {

VitOptions deit(std::int64_t dim, std::int64_t heads) {
  return {.image = 224, .patch = 16, .dim = dim, .depth = 12, .heads = heads};
}

SegmenterOptions segmenter(VitOptions encoder, std::int64_t image, std::int64_t classes) {
  encoder.image = image;
  encoder.classes = 0;
  const std::int64_t heads = encoder.heads;
  return {.encoder = std::move(encoder), .classes = classes, .decoder_heads = heads};
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

std::vector<Listed> image_models() {
  return {
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
}

std::vector<Listed> pixel_models() {
  return {
      {.name = "segmenter_micro",
       .task = "pixels",
       .about = "for windows of 96 pixels, on a processor",
       .segmenter =
           segmenter({.patch = 8, .dim = 64, .depth = 4, .heads = 4, .mlp_ratio = 2}, 96, 11)},
      {.name = "segmenter_tiny_patch16_512",
       .task = "pixels",
       .about = "DeiT tiny and a mask transformer, as for ADE20K",
       .segmenter = segmenter(deit(192, 3), 512, 150)},
  };
}

std::vector<Listed> sequence_models() {
  return {
      {.name = "lra_listops",
       .task = "sequences",
       .about = "Long Range Arena's",
       .sequence = SequenceOptions{.vocabulary = 16,
                                   .length = 2000,
                                   .dim = 512,
                                   .depth = 4,
                                   .heads = 8,
                                   .pooling = Pooling::cls}},
      {.name = "lra_text",
       .task = "sequences",
       .about = "Long Range Arena's, over bytes",
       .sequence = SequenceOptions{.vocabulary = 256,
                                   .length = 4000,
                                   .classes = 2,
                                   .dim = 256,
                                   .depth = 4,
                                   .heads = 4,
                                   .mlp_ratio = 4,
                                   .pooling = Pooling::cls}},
      {.name = "lra_image",
       .task = "sequences",
       .about = "Long Range Arena's, over the grey pixels of 32 x 32",
       .sequence = SequenceOptions{.vocabulary = 256,
                                   .dim = 128,
                                   .depth = 1,
                                   .heads = 8,
                                   .head_dim = 8,
                                   .mlp_ratio = 1,
                                   .pooling = Pooling::cls}},
      {.name = "lra_pathfinder",
       .task = "sequences",
       .about = "Long Range Arena's, over the grey pixels of 32 x 32",
       .sequence = SequenceOptions{.vocabulary = 256,
                                   .classes = 2,
                                   .dim = 32,
                                   .depth = 4,
                                   .heads = 4,
                                   .head_dim = 4,
                                   .mlp_ratio = 1,
                                   .pooling = Pooling::cls}},
      {.name = "lra_small",
       .task = "sequences",
       .about = "two layers of 64 and the mean, for any of its tasks",
       .sequence = SequenceOptions{.vocabulary = 256, .length = 4000}},
      {.name = "series_small",
       .task = "series",
       .about = "for time series; channels, length and classes are the data's",
       .sequence =
           SequenceOptions{
               .channels = 1, .length = 512, .classes = 2, .dim = 64, .depth = 2, .heads = 4}},
  };
}

std::vector<Listed> language_models() {
  return {
      {.name = "language_micro",
       .task = "text",
       .about = "over bytes, on a processor",
       .language =
           LanguageOptions{.vocabulary = 256, .context = 128, .dim = 128, .depth = 4, .heads = 4}},
      {.name = "language_small",
       .task = "text",
       .about = "for WikiText-2 and its words; the vocabulary is the data's",
       .language =
           LanguageOptions{
               .vocabulary = 33278, .context = 256, .dim = 256, .depth = 4, .heads = 4}},
      {.name = "stories260k",
       .task = "text",
       .about = "llama2.c's smallest; others of its models differ in size alone",
       .language = LanguageOptions{.vocabulary = 512,
                                   .context = 512,
                                   .dim = 64,
                                   .depth = 5,
                                   .heads = 8,
                                   .kv_heads = 4,
                                   .hidden = 172,
                                   .positions = Positions::rotary,
                                   .pairs = Pairs::neighbours,
                                   .norm = Norm::rms,
                                   .activation = Activation::swiglu,
                                   .biases = false}},
      {.name = "gpt2", .task = "text", .about = "GPT-2's smallest", .language = LanguageOptions{}},
  };
}

}  // namespace

const std::vector<Listed>& listed() {
  static const std::vector<Listed> all = [] {
    std::vector<Listed> models = image_models();
    for (const auto& more : {pixel_models(), sequence_models(), language_models()}) {
      models.insert(models.end(), more.begin(), more.end());
    }
    return models;
  }();
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

namespace {

/// Numbers that a block trains, and multiply-adds of `tokens` of them through it.
Size block_size(const BlockSizes& s, std::int64_t tokens) {
  const std::int64_t inner = s.heads * (s.head_dim > 0 ? s.head_dim : s.dim / s.heads);
  const std::int64_t hidden = std::int64_t(double(s.dim) * s.mlp_ratio);
  const std::int64_t products = 4 * s.dim * inner + 2 * s.dim * hidden;      // weights
  const std::int64_t rest = 3 * inner + s.dim + hidden + s.dim + 4 * s.dim;  // biases, norms
  return {products + rest, double(tokens) * double(products + 2 * tokens * inner)};
}

}  // namespace

Size size_of(const VitOptions& o) {
  const std::int64_t side = o.image / o.patch, patches = side * side, tokens = patches + 1;
  const std::int64_t pixels = o.channels * o.patch * o.patch;
  const Size block =
      block_size({.dim = o.dim, .depth = 1, .heads = o.heads, .mlp_ratio = o.mlp_ratio}, tokens);
  return {o.depth * block.parameters + (pixels + 1) * o.dim + (1 + tokens) * o.dim + 2 * o.dim +
              (o.dim + 1) * o.classes,
          double(o.depth) * block.multiply_adds + double(patches * pixels * o.dim) +
              double(o.classes * o.dim)};
}

Size size_of(const SegmenterOptions& o) {
  VitOptions encoder = o.encoder;
  encoder.classes = 0;
  const Size below = size_of(encoder);
  const std::int64_t side = encoder.image / encoder.patch, patches = side * side;
  const std::int64_t dim = encoder.dim, tokens = patches + o.classes;
  const Size block = block_size({.dim = dim, .depth = 1, .heads = o.decoder_heads}, tokens);
  return {below.parameters + o.decoder_depth * block.parameters + (dim + 1) * dim + 2 * dim +
              2 * o.classes + o.classes * dim + 2 * dim * dim,
          below.multiply_adds + double(o.decoder_depth) * block.multiply_adds +
              double(patches * dim * dim) + double(tokens * dim * dim) +
              double(patches * o.classes * dim)};
}

Size size_of(const SequenceOptions& o) {
  const std::int64_t cls = o.pooling == Pooling::cls, tokens = o.length + cls;
  const Size block = block_size({.dim = o.dim,
                                 .depth = 1,
                                 .heads = o.heads,
                                 .head_dim = o.head_dim,
                                 .mlp_ratio = o.mlp_ratio},
                                tokens);
  const std::int64_t embed = o.vocabulary > 0 ? o.vocabulary * o.dim : (o.channels + 1) * o.dim;
  return {o.depth * block.parameters + embed + (tokens + cls) * o.dim + 2 * o.dim +
              (o.dim + 1) * o.classes,
          double(o.depth) * block.multiply_adds + double(o.length * o.channels * o.dim) +
              double(o.classes * o.dim)};
}

Size size_of(const LanguageOptions& o) {
  const std::int64_t size = o.dim / o.heads, hidden = o.hidden == 0 ? 4 * o.dim : o.hidden;
  const std::int64_t keys = 2 * size * (o.kv_heads == 0 ? o.heads : o.kv_heads);  // and values
  const std::int64_t linears = o.activation == Activation::swiglu ? 3 : 2;        // of the MLP
  const std::int64_t products = o.dim * (2 * o.dim + keys) + linears * o.dim * hidden;
  const std::int64_t biases =
      o.biases ? 2 * o.dim + keys + (linears - 1) * hidden + o.dim : std::int64_t(0);
  const std::int64_t norm = o.dim * (o.norm == Norm::layer ? 2 : 1);
  const std::int64_t learned = o.positions == Positions::learned ? o.context * o.dim : 0;
  return {o.depth * (products + biases + 2 * norm) + norm + learned +
              (o.tied ? 1 : 2) * o.vocabulary * o.dim,
          double(o.context) *
              double(o.depth * (products + 2 * o.context * o.dim) + o.vocabulary * o.dim)};
}

Size size_of(const Listed& model) {
  if (model.language) return size_of(*model.language);
  if (model.segmenter) return size_of(*model.segmenter);
  return model.sequence ? size_of(*model.sequence) : size_of(model.vit);
}

}  // namespace foci::models
