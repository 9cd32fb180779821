// SPDX-License-Identifier: Apache-2.0
// Weights as bytes of each row's largest, in base64.
#include "cli/torch/compare_maps.hpp"

#include "cli/torch/measure_samples.hpp"
#include "cli/torch/tasks.hpp"

#include <foci/measure.hpp>
#include <foci/passes.hpp>
#include <foci/subset.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
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

/// Five digits, more than a picture shows.
double rounded(double x) {
  return std::isfinite(x) ? std::strtod(fmt::format("{:.5g}", x).c_str(), nullptr) : 0;
}

/// (D) or (n,D)
Json rounded_json(const at::Tensor& tensor) {
  Json list = Json::array();
  for (std::int64_t i = 0; i < tensor.size(0); ++i) {
    list.push_back(tensor.dim() > 1 ? rounded_json(tensor[i])
                                    : Json(rounded(tensor[i].item<double>())));
  }
  return list;
}

/// Head 0 of a layer: keys by the two coordinates whose scales differ most, and one query. `space`
/// has all coordinates, from which those are taken that several mechanisms are shown in.
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
          {"weights", shares},
          {"space",
           {{"keys", rounded_json(keys)},
            {"query", rounded_json(row)},
            {"metric", rounded_json(matrix)}}}};
}

/// What passes see of an image, and what it is called.
struct Sight {
  data::Image image;
  std::string label;
};

/// A run going over images.
struct Subject {
  train::Passes passes;
  std::function<Sight(std::int64_t image)> sight;
};

Subject classifier_of(const std::string& run, const RunConfig& config, const data::ImageSet& set) {
  const train::ImageTraining training = image_training(config.words, {});
  const train::ImageFacts facts = facts_in(run, config.data);
  return {train::passes_of(training.model, weights_of(run, false), facts, set, training.input),
          [=](std::int64_t i) {
            return Sight{seen_image(training, facts, set.image(i)),
                         set.classes()[std::size_t(set.label(i))]};
          }};
}

/// The middle of an image, as large as a window.
Subject segmenter_of(const std::string& run, const RunConfig& config, const data::ImageSet& set) {
  const train::SegmentTraining training = segment_training(config.words, {});
  const train::ImageFacts facts = facts_in(run, config.data);
  return {train::passes_of(training, weights_of(run, false), facts, set), [=](std::int64_t i) {
            return Sight{train::seen_window(training, facts, set, i).image,
                         std::filesystem::path(set.name(i)).stem().string()};
          }};
}

/// The lowest layers, as far as they have the same tokens: all, or a segmenter's encoder.
std::vector<at::Tensor> of_one_size(std::vector<at::Tensor> layers) {
  const std::int64_t tokens = layers.at(0).size(2);
  std::erase_if(layers, [&](const at::Tensor& a) { return a.size(2) != tokens; });
  return layers;
}

/// The page says why it has no heat-maps.
Json too_many(std::int64_t tokens) {
  return {{"name", "no-maps"},
          {"means", fmt::format("images have {} tokens: heat-maps and ellipses are drawn of {} and "
                                "fewer",
                                tokens, most_tokens)},
          {"do", "--model 'patch=...' with larger patches, or foci measure RUN --pictures FOLDER"}};
}

}  // namespace

Json compare_maps(const std::string& run, std::int64_t images) {
  const RunConfig config = read_config(run);
  const data::ImageSet set = data::evenly(images_of(config.data, config.words), images);
  const Subject subject =
      config.task == "segments" ? segmenter_of(run, config, set) : classifier_of(run, config, set);
  Json maps = Json::array(), ellipses = Json::array(), flags = Json::array();
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const auto pass = [&] { subject.passes.run(std::span(&i, 1)); };
    const std::vector<at::Tensor> layers = of_one_size(measure::maps(pass));
    const std::int64_t tokens = layers.at(0).size(2);
    if (tokens > most_tokens) {
      flags.push_back(too_many(tokens));
      break;
    }
    if (layers[0].size(3) != tokens) break;
    const auto [image, label] = subject.sight(i);
    const train::Standing standing = subject.passes.standing.front();
    maps.push_back({{"image", i},
                    {"label", label},
                    {"side", image.width},
                    {"height", image.height},
                    {"channels", image.channels},
                    {"pixels", base64(image.pixels.data(), image.pixels.size())},
                    {"tokens", tokens},
                    {"grid", standing.height},
                    {"prefix", standing.leading},
                    {"weights", weights_json(layers)}});
    if (i > 0) continue;
    nn::Watch watch([&](const nn::Seen& call) {
      if (call.q.size(2) == tokens) ellipses.push_back(ellipse_json(call, tokens / 2));
    });
    pass();
  }
  return {{"stage", "maps"},
          {"records", Json::array()},
          {"maps", maps},
          {"ellipses", ellipses},
          {"flags", flags}};
}

}  // namespace foci::cli
