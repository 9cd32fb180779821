// SPDX-License-Identifier: Apache-2.0
// A vision transformer learns classes of images, and is judged by them.
#include <foci/classify.hpp>
#include <foci/models.hpp>
#include <foci/passes.hpp>
#include <foci/train.hpp>

#include "train/autocast.hpp"
#include "train/begin.hpp"
#include "train/image_batches.hpp"
#include "train/image_model.hpp"
#include "train/tensors.hpp"

#include <foci/error.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/topk.h>

#include <fmt/core.h>

namespace foci::train {

models::VitOptions vit_options(const ImageModel& model, const ImageFacts& facts) {
  const models::Listed& listed = models::find(model.name);
  if (listed.segmenter || listed.sequence || listed.language) {
    throw InvalidArgument(
        fmt::format("{} is for {}; a classifier of images needs a vit", listed.name, listed.task));
  }
  models::VitOptions o = listed.vit;
  change(o.patch, model.patch);
  if (model.name == "vit_micro") o.image = std::max(o.patch, facts.side / o.patch * o.patch);
  change(o.image, model.image);
  change(o.dim, model.dim);
  change(o.depth, model.depth);
  change(o.heads, model.heads);
  change(o.mlp_ratio, model.mlp_ratio);
  o.channels = facts.channels;
  o.classes = facts.classes;
  o.drop_path = model.drop_path;
  o.mechanism = {model.mechanism, model.first_layer, model.last_layer};
  return o;
}

namespace {

/// A batch as tensors that keep it alive.
struct Batch {
  at::Tensor images, targets;

  Batch(data::Batch&& made, at::Device device) {
    const auto held = std::make_shared<data::Batch>(std::move(made));
    const auto tensor = [&](const Tensor& from) {
      return tensor_of(from.view(), [held](void*) {}).to(device);
    };
    images = tensor(held->inputs);
    targets = tensor(held->targets);
  }
};

/// `batches` may be absent, where a rank has no sample.
Scores judge(models::Vit& model, data::Loader* batches, at::Device device, const RunOptions& run) {
  const at::NoGradGuard without;
  model->eval();
  const std::int64_t five = std::min<std::int64_t>(5, model->options().classes);
  double top1 = 0, top5 = 0, loss = 0, count = 0;
  for (std::int64_t i = 0; batches != nullptr && i < batches->batches_per_epoch(); ++i) {
    go_on_judging(run);
    const Batch batch(batches->next(), device);
    const at::Tensor logits = model->forward(batch.images);
    const at::Tensor hits =
        std::get<1>(logits.topk(five)).eq(batch.targets.unsqueeze(1)).to(at::kFloat);
    top1 += hits.select(1, 0).sum().item<double>();
    top5 += hits.sum().item<double>();
    loss += at::cross_entropy_loss(logits, batch.targets, {}, at::Reduction::Sum).item<double>();
    count += double(batch.targets.size(0));
  }
  const auto all = summed(run, {top1, top5, loss, count});
  return {{"top1", all[0] / all[3]}, {"top5", all[1] / all[3]}, {"valid_loss", all[2] / all[3]}};
}

}  // namespace

std::string lost_layer(models::Vit& model, const at::Tensor& images) {
  at::Tensor x = model->proj(images).flatten(2).transpose(1, 2);
  if (is_lost(x)) return "patch_embed.proj";
  x = at::cat({model->cls_token.expand({x.size(0), -1, -1}), x}, 1) + model->pos_embed;
  const std::string block = lost_block(model->blocks, x);
  if (!block.empty()) return block;
  x = model->norm(x);
  if (is_lost(x)) return "norm";
  return !model->head.is_empty() && is_lost(model->head(x)) ? "head" : "";
}

std::int64_t side_of(const ImageModel& model, const ImageFacts& facts) {
  return vit_options(model, facts).image;
}

Outcome train_images(const ImageTraining& training, const data::ImageSet& train,
                     const data::ImageSet& valid, const Told& told) {
  const ImageFacts facts = facts_of(train);
  check_labels(train, facts);
  check_labels(valid, facts);
  if (facts.classes < 2) throw InvalidArgument("the set has one class; a classifier needs two");
  const RunOptions run_options =
      completed(training.run, {train.size(), training.input.batch, training.epochs});
  const at::Device device = device_of(training.input.place);
  at::manual_seed(training.run.seed);
  models::Vit model(vit_options(training.model, facts));
  if (!training.weights.empty()) models::load_plain(*model, training.weights);
  model->to(device);
  const std::int64_t side = model->options().image;
  std::unique_ptr<data::Loader> batches;
  at::Tensor last;  // images, for whoever asks where they went wrong
  Task task;
  task.module = model.get();
  task.samples = training.input.batch;
  task.start_at = [&](std::int64_t batch) {
    batches = training_batches(train, facts, side, training, batch, share_of(training.run));
  };
  task.loss = [&] {
    const Batch batch(batches->next(), device);
    last = batch.images;
    return part_of_mean(run_options,
                        at::cross_entropy_loss(model->forward(batch.images), batch.targets),
                        training.input.batch);
  };
  task.evaluate = [&] {
    const auto judged = judged_batches(valid, facts, side, training.input, share_of(training.run));
    return judge(model, judged.get(), device, run_options);
  };
  task.first_lost = [&] { return lost_layer(model, last); };
  return run(task, run_options, told);
}

Scores evaluate_images(const ImageModel& model, const std::string& weights, const ImageFacts& facts,
                       const data::ImageSet& set, const ImageInput& input) {
  check_labels(set, facts);
  const at::Device device = device_of(input.place);
  models::Vit vit(vit_options(model, facts));
  nn::load_weights(*vit, weights);
  vit->to(device);
  const auto judged = judged_batches(set, facts, vit->options().image, input);
  const Autocast narrow(input.place.bf16, device.type());
  Scores scores = judge(vit, judged.get(), device, {});
  scores["count"] = double(set.size());
  return scores;
}

Passes passes_of(const ImageModel& model, const std::string& weights, const ImageFacts& facts,
                 const data::ImageSet& set, const ImageInput& input) {
  check_labels(set, facts);
  const at::Device device = device_of(input.place);
  models::Vit vit(vit_options(model, facts));
  nn::load_weights(*vit, weights);
  vit->to(device);
  vit->eval();
  const std::int64_t size = vit->options().image, side = size / vit->options().patch;
  data::ImagePlan plan;
  plan.size = int(size);
  plan.crop_share = input.crop_share;
  plan.mean = facts.mean;
  plan.deviation = facts.deviation;
  const auto run = [=](std::span<const std::int64_t> which) mutable {
    const at::NoGradGuard without;
    const at::Tensor batch = at::empty({std::int64_t(which.size()), facts.channels, size, size});
    auto* to = batch.data_ptr<float>();
    for (const std::int64_t sample : which) {
      data::prepare_evaluation(to, checked_image(set, sample, facts), plan);
      to += facts.channels * size * size;
    }
    vit->tokens(batch.to(device));
  };
  return {set.size(), run, {{1, side, side}}};
}

}  // namespace foci::train
