// SPDX-License-Identifier: Apache-2.0
// Weights as bytes of each row's largest, in base64.
#include "cli/torch/compare_maps.hpp"

#include "cli/torch/tasks.hpp"

#include <foci/measure.hpp>
#include <foci/passes.hpp>
#include <foci/subset.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>

#include <algorithm>
#include <vector>

namespace foci::cli {
namespace {

constexpr std::int64_t most_tokens = 256;

std::string base64(const std::uint8_t* bytes, std::size_t count) {
  constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < count; i += 3) {
    const std::size_t have = std::min<std::size_t>(3, count - i);
    std::uint32_t three = 0;
    for (std::size_t k = 0; k < 3; ++k) three = three << 8 | (k < have ? bytes[i + k] : 0u);
    for (std::size_t k = 0; k < 4; ++k) out += k <= have ? digits[three >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

/// (L,H,N,N) of one pass.
Json weights_json(const std::vector<at::Tensor>& layers) {
  Json largest = Json::array();
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& layer : layers) {
    const at::Tensor a = layer[0].abs().to(at::kFloat);  // (H,N,N)
    const at::Tensor rows = std::get<0>(a.max(2, /*keepdim=*/true)).clamp_min(1e-30);
    bytes.push_back((a / rows * 255).round().to(at::kByte).flatten());
    Json heads = Json::array();
    for (std::int64_t h = 0; h < a.size(0); ++h) heads.push_back(a[h].max().item<double>());
    largest.push_back(heads);
  }
  const at::Tensor all = at::cat(bytes).contiguous();
  return {{"layers", layers.size()},
          {"heads", layers[0].size(1)},
          {"largest", largest},
          {"data", base64(all.data_ptr<std::uint8_t>(), std::size_t(all.size(0)))}};
}

/// The metric of one head as (D,D): the identity where there is none.
at::Tensor matrix_of(const nn::Seen& call, std::int64_t group) {
  const std::int64_t size = call.k.size(3);
  const at::Tensor& metric = call.statistics.metric;
  if (!metric.defined() || metric.dim() != 4 || metric.size(0) == 0)
    return at::eye(size, at::kFloat);
  const at::Tensor own =
      metric[0][std::min(group, metric.size(1) - 1)].to(at::kFloat);  // (1,D) or (D,D)
  return own.size(0) == size && own.size(0) > 1 ? own : own[0].diag();
}

/// Head 0 of a layer: keys by the two coordinates whose scales differ most, and one query.
Json ellipse_json(const nn::Seen& call, std::int64_t query) {
  const at::Tensor matrix = matrix_of(call, 0), scales = matrix.diagonal();
  std::int64_t a = scales.argmax().item<std::int64_t>();
  std::int64_t b = scales.argmin().item<std::int64_t>();
  if (a == b) b = (a + 1) % scales.size(0);
  const auto entry = [&](std::int64_t i, std::int64_t j) { return matrix[i][j].item<double>(); };
  const at::Tensor keys = call.k[0][0].to(at::kFloat), row = call.q[0][0][query].to(at::kFloat);
  const at::Tensor weights =
      measure::weights(call, {.sample = 0, .head = 0, .first = query, .count = 1}).flatten();
  Json points = Json::array(), shares = Json::array();
  for (std::int64_t i = 0; i < keys.size(0); ++i) {
    points.push_back({keys[i][a].item<double>(), keys[i][b].item<double>()});
    shares.push_back(weights[i].item<double>());
  }
  return {{"layer", call.layer},
          {"head", 0},
          {"axes", {a, b}},
          {"keys", points},
          {"query", {row[a].item<double>(), row[b].item<double>()}},
          {"metric", {{entry(a, a), entry(a, b)}, {entry(b, a), entry(b, b)}}},
          {"weights", shares}};
}

}  // namespace

Json compare_maps(const std::string& run, std::int64_t images) {
  const RunConfig config = read_config(run);
  const train::ImageTraining training = image_training(config.words, {});
  const train::ImageFacts facts = facts_in(run, config.data);
  const data::ImageSet set = data::evenly(
      data::open_images(data_folder(config.words.at("data")), split_of(config.words.at("split"))),
      images);
  const train::Passes passes =
      train::passes_of(training.model, weights_of(run, false), facts, set, training.input);
  Json maps = Json::array(), ellipses = Json::array();
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const auto pass = [&] { passes.run(std::span(&i, 1)); };
    const std::vector<at::Tensor> layers = measure::maps(pass);
    const std::int64_t tokens = layers.at(0).size(2);
    if (tokens > most_tokens || layers[0].size(3) != tokens) break;
    const data::Image image = set.image(i);
    const train::Standing standing = passes.standing.back();
    maps.push_back({{"image", i},
                    {"label", set.classes()[std::size_t(set.label(i))]},
                    {"side", image.width},
                    {"height", image.height},
                    {"channels", image.channels},
                    {"pixels", base64(image.pixels.data(), image.pixels.size())},
                    {"tokens", tokens},
                    {"grid", standing.height},
                    {"prefix", standing.leading},
                    {"weights", weights_json(layers)}});
    if (i > 0) continue;
    nn::Watch watch(
        [&](const nn::Seen& call) { ellipses.push_back(ellipse_json(call, tokens / 2)); });
    pass();
  }
  return {{"stage", "maps"}, {"records", Json::array()}, {"maps", maps}, {"ellipses", ellipses}};
}

}  // namespace foci::cli
