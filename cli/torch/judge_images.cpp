// SPDX-License-Identifier: Apache-2.0
// Logits of pieces of a set, and what they come to.
#include "cli/torch/judge_images.hpp"

#include <foci/classifier.hpp>
#include <foci/subset.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <numeric>

namespace foci::cli {

Judgement judge_each(const train::ImageTraining& training, const std::string& weights,
                     const train::ImageFacts& facts, const data::ImageSet& set) {
  const at::NoGradGuard without;
  train::Place place = training.input.place;
  place.bf16 = training.run.bf16;
  const auto model = train::open_classifier(training.model, weights, facts, place);
  const bool cuda = training.input.place.device == "cuda";
  const std::int64_t five = std::min<std::int64_t>(5, facts.classes);
  double top5 = 0, loss = 0;
  Judgement found;
  for (std::int64_t first = 0; first < set.size(); first += training.input.batch) {
    std::vector<std::int64_t> numbers(
        std::size_t(std::min(training.input.batch, set.size() - first)));
    std::iota(numbers.begin(), numbers.end(), first);
    train::Pixels pixels =
        train::pixels_of(training.model, facts, data::some_of(set, numbers), training.input, 0);
    if (cuda) pixels.images = pixels.images.to(at::kCUDA);
    const at::Tensor logits = model(pixels.images).to(at::kCPU);
    const at::Tensor hits =
        std::get<1>(logits.topk(five)).eq(pixels.labels.unsqueeze(1)).to(at::kByte).contiguous();
    for (std::int64_t i = 0; i < hits.size(0); ++i)
      found.right += hits.data_ptr<std::uint8_t>()[i * five] != 0 ? '1' : '0';
    top5 += hits.sum().item<double>();
    loss += at::cross_entropy_loss(logits, pixels.labels, {}, at::Reduction::Sum).item<double>();
  }
  const double count = double(set.size());
  const double top1 = double(std::count(found.right.begin(), found.right.end(), '1'));
  found.scores = {{"top1", top1 / count},
                  {"top5", top5 / count},
                  {"valid_loss", loss / count},
                  {"count", count}};
  return found;
}

}  // namespace foci::cli
