// SPDX-License-Identifier: Apache-2.0
// A run's classifier over pixels, and the pixels themselves.
#include <foci/classifier.hpp>

#include "train/autocast.hpp"
#include "train/begin.hpp"
#include "train/image_batches.hpp"
#include "train/image_model.hpp"

#include <foci/image.hpp>
#include <foci/settings.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace foci::train {
namespace {

/// The same with metric dot: what belongs to the metric goes, what belongs to the weighting stays.
models::VitOptions with_dot(models::VitOptions options) {
  Settings& words = options.mechanism.words;
  const auto weighting = words.find("weighting");
  const std::string own = weighting == words.end() ? "softmax" : weighting->second;
  std::erase_if(words, [&](const auto& word) {
    const auto of = owners(word.first);
    return word.first != "weighting" && word.first != "scale" &&
           std::find(of.begin(), of.end(), own) == of.end();
  });
  words["metric"] = "dot";
  return options;
}

/// Parameters that both have.
models::Vit plain_copy(models::Vit& from) {
  const at::NoGradGuard without;
  models::Vit vit(with_dot(from->options()));
  const auto known = from->named_parameters();
  for (auto& item : vit->named_parameters()) item.value().copy_(known[item.key()]);
  return vit;
}

}  // namespace

std::function<at::Tensor(const at::Tensor&)> open_classifier(const ImageModel& model,
                                                             const std::string& weights,
                                                             const ImageFacts& facts,
                                                             const Place& place, bool plain) {
  const at::Device device = device_of(place);
  models::Vit vit(vit_options(model, facts));
  nn::load_weights(*vit, weights);
  if (plain) vit = plain_copy(vit);
  vit->to(device);
  vit->eval();
  for (at::Tensor& parameter : vit->parameters()) parameter.requires_grad_(false);
  const auto column = [&](const std::vector<float>& values) {
    return at::tensor(values).view({-1, 1, 1}).to(device);
  };
  const at::Tensor mean = column(facts.mean), deviation = column(facts.deviation);
  return [=, bf16 = place.bf16](const at::Tensor& images) mutable {
    const Autocast narrow(bf16, device.type());
    return vit->forward((images - mean) / deviation).to(at::kFloat);
  };
}

Pixels pixels_of(const ImageModel& model, const ImageFacts& facts, const data::ImageSet& set,
                 const ImageInput& input, std::int64_t count) {
  check_labels(set, facts);
  const std::int64_t side = vit_options(model, facts).image, size = set.size();
  const std::int64_t taken = count == 0 ? size : std::min(count, size);
  data::ImagePlan plan;
  plan.size = int(side);
  plan.crop_share = input.crop_share;
  plan.mean.assign(std::size_t(facts.channels), 0);
  plan.deviation.assign(std::size_t(facts.channels), 1);
  Pixels out{at::empty({taken, facts.channels, side, side}), at::empty({taken}, at::kLong),
             at::empty({taken}, at::kLong)};
  for (std::int64_t i = 0; i < taken; ++i) {
    const std::int64_t sample = i * size / taken;
    data::prepare_evaluation(out.images.data_ptr<float>() + i * facts.channels * side * side,
                             checked_image(set, sample, facts), plan);
    out.labels.data_ptr<std::int64_t>()[i] = set.label(sample);
    out.samples.data_ptr<std::int64_t>()[i] = sample;
  }
  return out;
}

}  // namespace foci::train
