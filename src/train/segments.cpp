// SPDX-License-Identifier: Apache-2.0
// A Segmenter learns the classes of pixels from windows, and is judged by whole images.
#include <foci/models.hpp>
#include <foci/passes.hpp>
#include <foci/train.hpp>
#include <foci/train_segments.hpp>

#include "train/autocast.hpp"
#include "train/begin.hpp"
#include "train/image_model.hpp"
#include "train/segment_batches.hpp"
#include "train/tensors.hpp"

#include <foci/error.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::train {
namespace {

models::SegmenterOptions options_of(const ImageModel& model, const ImageFacts& facts) {
  const models::Listed& listed = models::find(model.name);
  if (!listed.segmenter) {
    throw InvalidArgument(
        fmt::format("{} is for {}; segments needs a segmenter", listed.name, listed.task));
  }
  models::SegmenterOptions o = *listed.segmenter;
  change(o.encoder.image, model.image);
  change(o.encoder.patch, model.patch);
  change(o.encoder.dim, model.dim);
  change(o.encoder.depth, model.depth);
  change(o.encoder.heads, model.heads);
  change(o.decoder_heads, model.heads);
  change(o.encoder.mlp_ratio, model.mlp_ratio);
  o.encoder.channels = facts.channels;
  o.encoder.drop_path = model.drop_path;
  o.encoder.mechanism = {model.mechanism, model.first_layer, model.last_layer};
  o.classes = facts.classes;
  return o;
}

/// Guesses of the size of the mask.
at::Tensor guessed(models::Segmenter& model, JudgedImage& image, const data::Image& mask,
                   const SegmentTraining& how, at::Device device) {
  const models::VitOptions& o = model->options().encoder;
  const at::Tensor values =
      at::from_blob(image.values.data(), {o.channels, image.height, image.width}, at::kFloat);
  const std::int64_t stride = how.stride == 0 ? std::max<std::int64_t>(1, o.image / 2) : how.stride;
  const at::Tensor logits = models::sliding_logits(model, values.to(device), stride, how.batch);
  if (mask.height == image.height && mask.width == image.width) return logits.argmax(0);
  return at::upsample_bilinear2d(logits.unsqueeze(0), {mask.height, mask.width}, false)
      .squeeze(0)
      .argmax(0);
}

Scores judge(models::Segmenter& model, const data::ImageSet& set, const ImageFacts& facts,
             const SegmentTraining& how, at::Device device) {
  const at::NoGradGuard without;
  model->eval();
  models::Confusion seen(facts.classes);
  const Range own = share_of(how.run).of(set.size());
  for (std::int64_t i = own.first; i < own.end; ++i) {
    go_on_judging(how.run);
    data::Image whole = set.image(i), mask = set.mask(i);
    check_sizes(set, i, whole, mask);
    JudgedImage image = judged_image(std::move(whole), facts, how.shorter);
    const at::Tensor labels =
        at::from_blob(mask.pixels.data(), {mask.height, mask.width}, at::kByte);
    seen.add(labels, guessed(model, image, mask, how, device));
  }
  if (how.run.group != nullptr) {
    const at::Tensor all = seen.counts().to(how.run.group->device());
    how.run.group->sum(all);
    seen.counts().copy_(how.run.group->fetched(all));
  }
  return {{"miou", seen.mean_iou()},
          {"pixel_accuracy", seen.pixel_accuracy()},
          {"mean_accuracy", seen.mean_accuracy()}};
}

/// The windows go through layer by layer until something is not finite.
std::string first_lost(models::Segmenter& model, const at::Tensor& images) {
  const std::string encoder = lost_layer(model->encoder, images);
  if (!encoder.empty()) return "encoder." + encoder;
  const at::Tensor patches = model->encoder->tokens(images).slice(1, 1);
  at::Tensor x = model->proj_dec(patches);
  if (is_lost(x)) return "decoder.proj_dec";
  x = at::cat({x, model->cls_emb.expand({x.size(0), -1, -1})}, 1);
  const std::string block = lost_block(model->blocks, x);
  if (!block.empty()) return "decoder." + block;
  x = model->decoder_norm(x);
  if (is_lost(x)) return "decoder.decoder_norm";
  if (is_lost(x.slice(1, 0, patches.size(1)).matmul(model->proj_patch)))
    return "decoder.proj_patch";
  if (is_lost(x.slice(1, patches.size(1)).matmul(model->proj_classes)))
    return "decoder.proj_classes";
  return is_lost(model->masks(images)) ? "decoder.mask_norm" : "";
}

/// Of the whole batch.
double counted_pixels(const RunOptions& run, const at::Tensor& targets) {
  return summed(run, {double(targets.ne(data::ignored).sum().item<std::int64_t>())})[0];
}

}  // namespace

Outcome train_segments(const SegmentTraining& training, const data::ImageSet& train,
                       const data::ImageSet& valid, const Told& told) {
  const ImageFacts facts = facts_of(train);
  check_masks(train, facts);
  check_masks(valid, facts);
  const RunOptions run_options =
      completed(training.run, {train.size(), training.batch, training.epochs});
  const at::Device device = device_of(training.place);
  at::manual_seed(training.run.seed);
  models::Segmenter model(options_of(training.model, facts));
  if (!training.weights.empty()) models::load_plain(*model->encoder, training.weights);
  model->to(device);
  const std::int64_t side = model->options().encoder.image;
  std::unique_ptr<data::Loader> batches;
  at::Tensor last;  // images, for whoever asks where they went wrong
  Task task;
  task.module = model.get();
  task.samples = training.batch;
  task.start_at = [&](std::int64_t batch) {
    batches = window_batches(train, facts, side, training, batch, share_of(training.run));
  };
  task.loss = [&] {
    const data::Batch batch = batches->next();
    const auto tensor = [&](const Tensor& from) {
      return tensor_of(from.view(), [](void*) {}).to(device, /*non_blocking=*/false, /*copy=*/true);
    };
    last = tensor(batch.inputs);
    const at::Tensor targets = tensor(batch.targets);
    const auto loss_as = [&](at::Reduction::Reduction reduction) {
      return at::cross_entropy_loss(model->forward(last), targets, {}, reduction, data::ignored);
    };
    if (run_options.group == nullptr) return loss_as(at::Reduction::Mean);
    return loss_as(at::Reduction::Sum) / counted_pixels(run_options, targets);
  };
  task.evaluate = [&] { return judge(model, valid, facts, training, device); };
  task.first_lost = [&] { return first_lost(model, last); };
  return run(task, run_options, told);
}

Scores evaluate_segments(const SegmentTraining& training, const std::string& weights,
                         const ImageFacts& facts, const data::ImageSet& set) {
  check_masks(set, facts);
  const at::Device device = device_of(training.place);
  models::Segmenter model(options_of(training.model, facts));
  nn::load_weights(*model, weights);
  model->to(device);
  const Autocast narrow(training.run.bf16, device.type());
  Scores scores = judge(model, set, facts, training, device);
  scores["count"] = double(set.size());
  return scores;
}

namespace {

/// Where a window in the middle begins.
std::int64_t middle_of(std::int64_t length, std::int64_t window) {
  return std::max<std::int64_t>(0, length - window) / 2;
}

}  // namespace

SeenWindow seen_window(const SegmentTraining& training, const ImageFacts& facts,
                       const data::ImageSet& set, std::int64_t sample) {
  check_masks(set, facts);
  const int side = int(options_of(training.model, facts).encoder.image);
  data::Image image = set.image(sample), mask = set.mask(sample);
  if (training.shorter > 0) {
    image = data::resize_shorter(image, int(training.shorter), data::Filter::bilinear);
    mask = data::resize(mask, image.height, image.width, data::Filter::nearest);
  }
  SeenWindow seen{data::Image(side, side, image.channels), data::Image(side, side, 1)};
  const int top = int(middle_of(image.height, side)), left = int(middle_of(image.width, side));
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      const bool inside = top + y < image.height && left + x < image.width;
      *seen.mask.at(y, x) = inside ? *mask.at(top + y, left + x) : std::uint8_t(data::ignored);
      for (int c = 0; c < image.channels; ++c) {
        seen.image.at(y, x)[c] = inside
                                     ? image.at(top + y, left + x)[c]
                                     : std::uint8_t(std::lround(255 * facts.mean[std::size_t(c)]));
      }
    }
  }
  return seen;
}

Passes passes_of(const SegmentTraining& training, const std::string& weights,
                 const ImageFacts& facts, const data::ImageSet& set) {
  const at::Device device = device_of(training.place);
  models::Segmenter model(options_of(training.model, facts));
  nn::load_weights(*model, weights);
  model->to(device);
  model->eval();
  const models::VitOptions& o = model->options().encoder;
  const std::int64_t size = o.image, side = o.image / o.patch;
  const auto run = [=](std::span<const std::int64_t> which) mutable {
    const at::NoGradGuard without;
    std::vector<at::Tensor> windows;
    for (const std::int64_t sample : which) {
      JudgedImage image = judged_image(set.image(sample), facts, training.shorter);
      const at::Tensor values =
          at::from_blob(image.values.data(), {facts.channels, image.height, image.width});
      const std::int64_t height = std::max(image.height, size), width = std::max(image.width, size);
      const at::Tensor filled =
          at::constant_pad_nd(values, {0, width - image.width, 0, height - image.height});
      windows.push_back(filled.narrow(1, middle_of(height, size), size)
                            .narrow(2, middle_of(width, size), size)
                            .clone());
    }
    model->masks(at::stack(windows).to(device));
  };
  std::vector<Standing> standing(std::size_t(o.depth), Standing{1, side, side});
  standing.push_back({0, side, side});  // the decoder: patches, then a token for each class
  return {set.size(), run, standing};
}

}  // namespace foci::train
