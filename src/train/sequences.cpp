// SPDX-License-Identifier: Apache-2.0
// A classifier of sequences learns from batches that are filled up to their longest sample.
#include <foci/models.hpp>
#include <foci/passes.hpp>
#include <foci/train.hpp>
#include <foci/train_sequences.hpp>

#include "train/autocast.hpp"
#include "train/begin.hpp"

#include <foci/error.hpp>
#include <foci/loader.hpp>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace foci::train {
namespace {

models::SequenceOptions options_of(const SequenceModel& model, const SequenceFacts& facts) {
  const bool series = facts.channels > 0;
  const models::Listed& listed = models::find(!model.name.empty() ? model.name
                                              : series            ? std::string("series_small")
                                                                  : std::string("lra_small"));
  if (!listed.sequence || (listed.sequence->channels > 0) != series) {
    throw InvalidArgument(fmt::format(
        "{} is for {}; {}", listed.name, listed.task,
        series ? "time series need series_small" : "these sequences need one of lra_*"));
  }
  models::SequenceOptions o = *listed.sequence;
  o.vocabulary = facts.vocabulary;
  o.channels = facts.channels;
  o.classes = std::int64_t(facts.classes.size());
  o.length = series ? facts.longest : std::min(o.length, facts.longest);
  change(o.length, model.length);
  change(o.dim, model.dim);
  change(o.depth, model.depth);
  change(o.heads, model.heads);
  change(o.mlp_ratio, model.mlp_ratio);
  if (model.dim != 0 || model.heads != 0) o.head_dim = 0;
  o.dropout = model.dropout;
  o.drop_path = model.drop_path;
  o.mechanism = {model.mechanism, model.first_layer, model.last_layer};
  return o;
}

/// x: tokens (B,N) or steps (B,N,channels), 0 beyond a sample's length.
struct Padded {
  at::Tensor x, lengths, labels;
};

Padded padded(const SequenceSet& set, std::span<const std::int64_t> which,
              const models::SequenceOptions& o, at::Device device) {
  const auto count = std::int64_t(which.size());
  const auto length_of = [&](std::int64_t i) {
    return std::min(set.samples[std::size_t(i)].length, o.length);
  };
  std::int64_t most = 0;
  for (const std::int64_t i : which) most = std::max(most, length_of(i));
  const bool words = o.vocabulary > 0;
  Padded batch{words ? at::zeros({count, most}, at::kLong) : at::zeros({count, most, o.channels}),
               at::empty({count}, at::kLong), at::empty({count}, at::kLong)};
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t length = length_of(which[std::size_t(row)]);
    const Sequence& sample = set.samples[std::size_t(which[std::size_t(row)])];
    batch.lengths.data_ptr<std::int64_t>()[row] = length;
    batch.labels.data_ptr<std::int64_t>()[row] = sample.label;
    if (words) {
      std::copy_n(sample.tokens.begin(), length, batch.x.data_ptr<std::int64_t>() + row * most);
    } else {
      std::copy_n(sample.values.begin(), length * o.channels,
                  batch.x.data_ptr<float>() + row * most * o.channels);
    }
  }
  batch.x = batch.x.to(device);
  batch.labels = batch.labels.to(device);
  return batch;
}

Scores judge(models::Sequence& model, const SequenceSet& set, std::int64_t batch, at::Device device,
             const RunOptions& run) {
  const at::NoGradGuard without;
  model->eval();
  const auto size = std::int64_t(set.samples.size());
  const Range own = share_of(run).of(size);
  std::vector<std::int64_t> all(set.samples.size());
  std::iota(all.begin(), all.end(), 0);
  double right = 0, loss = 0;
  for (std::int64_t first = own.first; first < own.end; first += batch) {
    go_on_judging(run);
    const auto some =
        std::span(all).subspan(std::size_t(first), std::size_t(std::min(batch, own.end - first)));
    const Padded made = padded(set, some, model->options(), device);
    const at::Tensor logits = model->forward(made.x, made.lengths);
    right += logits.argmax(1).eq(made.labels).sum().item<double>();
    loss += at::cross_entropy_loss(logits, made.labels, {}, at::Reduction::Sum).item<double>();
  }
  const auto sums = summed(run, {right, loss});
  return {{"accuracy", sums[0] / double(size)}, {"valid_loss", sums[1] / double(size)}};
}

/// The batch goes through layer by layer until something is not finite; padding is seen here.
std::string first_lost(models::Sequence& model, const Padded& batch) {
  at::Tensor x = model->tokens ? model->tokens(batch.x) : model->steps(batch.x);
  if (is_lost(x)) return "embed";
  x = x + model->pos_embed.slice(1, 0, x.size(1));
  const std::string block = lost_block(model->blocks, x);
  if (!block.empty()) return block;
  return is_lost(model->norm(x)) ? "norm" : "head";
}

}  // namespace

Outcome train_sequences(const SequenceTraining& training, const SequenceFacts& facts,
                        const SequenceSet& train, const SequenceSet& valid, const Told& told) {
  const auto size = std::int64_t(train.samples.size());
  const RunOptions run_options =
      completed(training.run, {size, training.batch, training.epochs, "sequences"});
  const at::Device device = device_of(training.place);
  at::manual_seed(training.run.seed);
  models::Sequence model(options_of(training.model, facts));
  if (!training.weights.empty()) models::load_plain(*model, training.weights);
  model->to(device);
  const std::int64_t per_epoch = size / training.batch;
  std::int64_t next = 0, epoch = -1;
  std::vector<std::int64_t> order;
  Padded last;  // for whoever asks where it went wrong
  Task task;
  task.module = model.get();
  task.samples = training.batch;
  task.start_at = [&](std::int64_t batch) { next = batch; };
  task.loss = [&] {
    if (next / per_epoch != epoch) {
      epoch = next / per_epoch;
      order = data::epoch_order(size, training.run.seed, epoch, data::Order::shuffled);
    }
    const std::int64_t first = next++ % per_epoch * training.batch;
    const Range own = share_of(run_options).of(training.batch);
    last = padded(
        train, std::span(order).subspan(std::size_t(first + own.first), std::size_t(own.count())),
        model->options(), device);
    return part_of_mean(run_options,
                        at::cross_entropy_loss(model->forward(last.x, last.lengths), last.labels),
                        training.batch);
  };
  task.evaluate = [&] { return judge(model, valid, training.batch, device, run_options); };
  task.first_lost = [&] { return first_lost(model, last); };
  return run(task, run_options, told);
}

Scores evaluate_sequences(const SequenceTraining& training, const std::string& weights,
                          const SequenceFacts& facts, const SequenceSet& set) {
  const at::Device device = device_of(training.place);
  models::Sequence model(options_of(training.model, facts));
  nn::load_weights(*model, weights);
  model->to(device);
  const Autocast narrow(training.run.bf16, device.type());
  Scores scores = judge(model, set, training.batch, device, {});
  scores["count"] = double(set.samples.size());
  return scores;
}

Passes passes_of(const SequenceTraining& training, const std::string& weights,
                 const SequenceFacts& facts, const SequenceSet& set) {
  const at::Device device = device_of(training.place);
  models::Sequence model(options_of(training.model, facts));
  nn::load_weights(*model, weights);
  model->to(device);
  model->eval();
  const SequenceSet* from = &set;
  const auto run = [=](std::span<const std::int64_t> which) mutable {
    const at::NoGradGuard without;
    const Padded batch = padded(*from, which, model->options(), device);
    model->forward(batch.x, batch.lengths);
  };
  return {std::int64_t(set.samples.size()), run, {}};
}

}  // namespace foci::train
