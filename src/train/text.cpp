// SPDX-License-Identifier: Apache-2.0
// A language model learns to foresee the tokens of a text. Where an epoch's windows begin and their
// order hang on the seed and the epoch, so a run that is resumed meets the same ones.
#include <foci/language.hpp>
#include <foci/passes.hpp>
#include <foci/train.hpp>
#include <foci/train_text.hpp>

#include "train/autocast.hpp"
#include "train/begin.hpp"
#include "train/text_weights.hpp"

#include <foci/error.hpp>
#include <foci/loader.hpp>
#include <foci/random.hpp>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>

#include <fmt/core.h>

#include <algorithm>

namespace foci::train {
namespace {

constexpr std::uint64_t offset_stream = 0x7e87;

models::LanguageOptions options_of(const TextModel& model, std::int64_t vocabulary) {
  const models::Listed& listed = models::find(model.name);
  if (!listed.language) {
    throw InvalidArgument(
        fmt::format("{} is for {}; text needs a language model", listed.name, listed.task));
  }
  models::LanguageOptions o = *listed.language;
  o.vocabulary = vocabulary;
  change(o.context, model.context);
  change(o.dim, model.dim);
  change(o.depth, model.depth);
  change(o.heads, model.heads);
  change(o.kv_heads, model.kv_heads);
  if (model.mlp_ratio != 0) o.hidden = std::int64_t(double(o.dim) * model.mlp_ratio);
  o.dropout = model.dropout;
  o.head_dropout = model.head_dropout;
  if (!model.positions.empty()) {
    o.positions =
        model.positions == "rotary" ? models::Positions::rotary : models::Positions::learned;
  }
  o.mechanism = {model.mechanism, model.first_layer, model.last_layer};
  return o;
}

/// The windows of a text, epoch after epoch.
class Windows {
 public:
  Windows(const TokenText& text, std::int64_t window, const TextTraining& how)
      : tokens_(text.tokens),
        window_(window),
        batch_(how.batch),
        seed_(how.run.seed),
        own_(share_of(how.run).of(how.batch)) {
    const auto size = std::int64_t(tokens_.size());
    if (size <= window) {
      throw FileError(fmt::format("{}: has {} tokens, and a window of {} needs one more: --context",
                                  text.name, size, window));
    }
    slack_ = std::min(window, size - window);  // places where an epoch may begin
    count_ = (size - slack_) / window;
  }
  std::int64_t count() const { return count_; }
  void start_at(std::int64_t batch) { next_ = batch; }

  /// (batch,window+1), the next ones; of several ranks each its rows of them.
  at::Tensor next() {
    const std::int64_t per_epoch = count_ / batch_, epoch = next_ / per_epoch;
    if (epoch != epoch_) {
      order_ = data::epoch_order(count_, seed_, epoch, data::Order::shuffled);
      offset_ = data::Random(seed_, offset_stream, std::uint64_t(epoch)).below(slack_);
      epoch_ = epoch;
    }
    at::Tensor rows = at::empty({own_.count(), window_ + 1}, at::kLong);
    auto* to = rows.data_ptr<std::int64_t>();
    for (std::int64_t row = own_.first; row < own_.end; ++row) {
      const std::int64_t which = order_[std::size_t(next_ % per_epoch * batch_ + row)];
      to = std::copy_n(tokens_.begin() + offset_ + which * window_, window_ + 1, to);
    }
    ++next_;
    return rows;
  }

 private:
  std::span<const std::int32_t> tokens_;
  std::int64_t window_, batch_;
  std::uint64_t seed_;
  Range own_;
  std::int64_t slack_ = 0, count_ = 0, next_ = 0, epoch_ = -1, offset_ = 0;
  std::vector<std::int64_t> order_;
};

Scores judge(models::Language& model, const TokenText& text, std::int64_t stride,
             const RunOptions& run) {
  const std::int64_t window = model->options().context;
  models::PerplexityPart part{share_of(run), [&] { go_on_judging(run); }};
  models::Perplexity found = models::perplexity(model, text.tokens, window,
                                                stride == 0 ? window : stride, text.left_out, part);
  found.loss = summed(run, {found.loss})[0];
  return {{"perplexity", found.perplexity()},
          {"bits_per_byte", found.bits_per_byte(text.bytes)},
          {"valid_loss", found.loss}};
}

/// The beginning of the text, and how the model would go on.
std::string sample_of(models::Language& model, const Tokenizer& tokenizer, const TokenText& text,
                      const TextTraining& how) {
  constexpr std::size_t begin = 8;
  const std::size_t most = std::size_t(model->options().context) - 1;
  const auto size = std::min({begin, text.tokens.size(), std::max<std::size_t>(most, 1)});
  data::Tokens tokens(text.tokens.begin(), text.tokens.begin() + std::ptrdiff_t(size));
  const models::Sampling sampling{
      .tokens = how.sample, .temperature = 0.8, .top_p = 0.95, .seed = how.run.seed};
  const data::Tokens prompt = tokens;
  models::generate(model, prompt, sampling, [&](std::int32_t token) {
    tokens.push_back(token);
    go_on_judging(how.run);
    return true;
  });
  return tokenizer.decode(tokens);
}

std::string first_lost(models::Language& model, const at::Tensor& tokens) {
  for (const auto& [name, output] : model->parts(tokens)) {
    if (is_lost(output)) return name;
  }
  return "head";
}

}  // namespace

Outcome train_text(const TextTraining& training, const Tokenizer& tokenizer, const TokenText& train,
                   const TokenText& valid, const Told& told) {
  const models::LanguageOptions options = options_of(training.model, tokenizer.size());
  Windows windows(train, options.context, training);
  const RunOptions run_options = completed(
      training.run, {windows.count(), training.batch, training.epochs, "windows of tokens"});
  const at::Device device = device_of(training.place);
  at::manual_seed(training.run.seed);
  models::Language model(options);
  if (!training.weights.empty()) load_text_weights(model, training.weights);
  model->to(device);
  at::Tensor last;  // tokens, for whoever asks where they went wrong
  Task task;
  task.module = model.get();
  task.samples = training.batch * options.context;
  task.start_at = [&](std::int64_t batch) { windows.start_at(batch); };
  task.loss = [&] {
    const at::Tensor rows = windows.next().to(device);
    last = rows.slice(1, 0, options.context);
    return part_of_mean(
        run_options,
        at::cross_entropy_loss(model->forward(last).flatten(0, 1), rows.slice(1, 1).flatten()),
        training.batch);
  };
  task.evaluate = [&] { return judge(model, valid, training.stride, run_options); };
  if (training.sample > 0 && is_first(run_options))
    task.sample = [&] { return sample_of(model, tokenizer, valid, training); };
  task.first_lost = [&] { return first_lost(model, last); };
  return run(task, run_options, told);
}

Scores evaluate_text(const TextTraining& training, const std::string& weights,
                     const Tokenizer& tokenizer, const TokenText& text) {
  const at::Device device = device_of(training.place);
  models::Language model = open_language(training.model, tokenizer.size(), weights);
  model->to(device);
  const Autocast narrow(training.run.bf16, device.type());
  Scores scores = judge(model, text, training.stride, {});
  scores["count"] = double(text.tokens.size() - 1);
  return scores;
}

models::Language open_language(const TextModel& model, std::int64_t vocabulary,
                               const std::string& weights) {
  models::Language language(options_of(model, vocabulary));
  nn::load_weights(*language, weights);
  return language;
}

Passes passes_of(std::shared_ptr<models::Language> model, std::span<const std::int32_t> tokens) {
  const auto size = std::int64_t(tokens.size());
  const std::int64_t window = std::min((*model)->options().context, size);
  const std::int64_t vocabulary = (*model)->options().vocabulary;
  if (size < 1) throw InvalidArgument("a text of no tokens; it needs one at least");
  (*model)->eval();
  const auto run = [=](std::span<const std::int64_t> which) {
    const at::NoGradGuard without;
    const at::Tensor rows = at::empty({std::int64_t(which.size()), window}, at::kLong);
    auto* to = rows.data_ptr<std::int64_t>();
    for (const std::int64_t sample : which) {
      for (const std::int32_t token :
           tokens.subspan(std::size_t(sample * window), std::size_t(window))) {
        if (token < 0 || token >= vocabulary)
          throw InvalidArgument(fmt::format("token {} of a vocabulary of {}", token, vocabulary));
        *to++ = token;
      }
    }
    (*model)->states(rows.to((*model)->embed->weight.device()));
  };
  return {size / window, run, {}};
}

Passes passes_of(const TextTraining& training, const std::string& weights,
                 const Tokenizer& tokenizer, const TokenText& text) {
  const at::Device device = device_of(training.place);
  const auto model =
      std::make_shared<models::Language>(open_language(training.model, tokenizer.size(), weights));
  (*model)->to(device);
  return passes_of(model, text.tokens);
}

}  // namespace foci::train
