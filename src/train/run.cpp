// SPDX-License-Identifier: Apache-2.0
// The loop of training. A step's chance is seeded by the run's seed and the step, so a checkpoint
// needs no generator's state.
#include <foci/train.hpp>

#include "train/autocast.hpp"
#include "train/ranks.hpp"
#include "train/run_files.hpp"

#include <foci/error.hpp>
#include <foci/nn.hpp>
#include <foci/nn_parts.hpp>
#include <foci/random.hpp>
#include <foci/run_lock.hpp>

#include <ATen/Context.h>
#include <ATen/ops/full.h>

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>

namespace foci::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t step_stream = 0x57e9;  // apart from those of the data

constexpr double saving_seconds = 600;  // a slow disk is no rank that hangs

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::int64_t resident_bytes() {
  std::int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

bool is_finite(const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

/// The first parameter that is not finite; empty when all are.
std::string lost_parameter(const torch::nn::Module& module) {
  const at::NoGradGuard without;
  for (const auto& item : module.named_parameters()) {
    if (!is_finite(item.value())) return item.key();
  }
  return "";
}

/// "; first not finite: the output of blocks.3": a parameter, else a layer's output.
std::string lost_in(const Task& task) {
  const at::NoGradGuard without;
  const std::string parameter = lost_parameter(*task.module);
  if (!parameter.empty()) return "; first not finite: " + parameter;
  const std::string layer = task.first_lost ? task.first_lost() : "";
  return layer.empty() ? "" : "; first not finite: the output of " + layer;
}

std::string lost_gradient(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    if (gradient.defined() && !is_finite(gradient)) return item.key();
  }
  return "all of them together";
}

class Run {
 public:
  Run(const Task& task, const RunOptions& o)
      : task_(task), o_(o), optimizer_(*task.module, o.optimizer) {
    if (o.schedule.steps < 1 || o.accumulate < 1) {
      throw InvalidArgument(fmt::format("a run of {} steps of {} batches; it needs at least 1",
                                        o.schedule.steps, o.accumulate));
    }
    if (o.ema > 0) average_.emplace(*task.module, o.ema);
    if (writes()) {
      lock_.emplace(o.folder);
      if (o.resume) step_ = std::max<std::int64_t>(load_checkpoint(o.folder, state()), 0);
      files_.open(o.folder, step_);
    }
    if (o.group == nullptr) return;
    share_beginning();
    gradients_.emplace(*o.group, *task.module);
  }

  Outcome go(const Told& told) {
    const auto begin = Clock::now();
    const std::int64_t first = step_, last = o_.schedule.steps;
    Outcome outcome;
    if (step_ < last) task_.start_at(step_ * o_.accumulate);
    double trained = 0;  // seconds without evaluation
    bool goes_on = true;
    while (step_ < last && goes_on) {
      const auto start = Clock::now();
      Line line{.steps = last, .rate = rate_at(o_.schedule, step_)};
      one_step(line);
      trained += since(start);
      line.step = ++step_;
      const double a_step = trained / double(step_ - first);
      line.per_second = double(task_.samples * o_.accumulate) / a_step;
      line.left = a_step * double(last - step_);
      line.memory = resident_bytes();
      if (is_time(o_.evaluate_every)) {
        outcome.scores = line.scores = judge();
        if (task_.sample) line.sample = task_.sample();
      }
      if (writes()) files_.add(line);
      outcome.loss = line.loss;
      outcome.per_second = line.per_second;
      goes_on = goes_on_after(!told || told(line));
      if (!o_.folder.empty() && (!goes_on || is_time(o_.save_every))) save();
    }
    if (outcome.scores.empty() && step_ == last) outcome.scores = judge();
    outcome.steps = step_;
    outcome.finished = step_ == last;
    outcome.seconds = since(begin);
    return outcome;
  }

 private:
  bool writes() const { return !o_.folder.empty() && is_first(o_); }

  /// Weights, moments and average become rank 0's.
  void take_state() {
    const at::NoGradGuard without;
    Tensors all = optimizer_.state();
    if (average_) {
      for (const auto& [name, tensor] : average_->tensors()) all["average." + name] = tensor;
    }
    for (const auto& item : task_.module->named_parameters()) all["p." + item.key()] = item.value();
    for (const auto& item : task_.module->named_buffers()) all["b." + item.key()] = item.value();
    for (const auto& [name, tensor] : all) o_.group->take(tensor);
    optimizer_.load(all);
  }

  /// So does the step; rank 0 may have read all of it from a checkpoint.
  void share_beginning() {
    take_state();
    step_ = std::int64_t(o_.group->sum({is_first(o_) ? double(step_) : 0.0})[0]);
    if (step_ == 0) return;
    o_.group->saved(step_);
    for (const auto& item : task_.module->named_modules("", true)) {
      auto* const layer = dynamic_cast<nn::AttentionImpl*>(item.value().get());
      if (layer != nullptr) layer->loaded();
    }
  }

  /// The same sums and the same steps make the same weights. Where they do not, for want of memory
  /// that holds or of processors that round alike, they are made the same again before they are
  /// saved.
  void check_agreement() {
    if (o_.group == nullptr) return;
    const at::NoGradGuard without;
    double own = 0;
    for (const at::Tensor& p : task_.module->parameters()) own += p.sum(at::kDouble).item<double>();
    const at::Tensor first = at::full({1}, own, at::kDouble);
    o_.group->take(first);
    const bool differs = first.item<double>() != own;
    if (o_.group->sum({differs ? 1.0 : 0.0})[0] == 0) return;
    if (differs) {
      warn(
          fmt::format("step {}: the weights of rank {} were no longer those of rank 0; they are "
                      "again",
                      step_, o_.group->rank()));
    }
    take_state();
  }

  /// That a rank is told to stop is known to all one step later, with that step's loss.
  bool goes_on_after(bool own) {
    if (o_.group == nullptr) return own;
    wants_end_ = !own;
    return !ends_;
  }

  State state() { return {task_.module, &optimizer_, average_ ? &*average_ : nullptr}; }

  c10::DeviceType device() const { return task_.module->parameters().at(0).device().type(); }

  bool is_time(std::int64_t every) const {
    return step_ == o_.schedule.steps || (every > 0 && step_ % every == 0);
  }

  /// Dropout is drawn anew by every rank.
  std::uint64_t chance_of_step() const {
    const auto rank = std::uint64_t(share_of(o_).rank);
    return data::Random(o_.seed, step_stream + (rank << 32), std::uint64_t(step_)).bits();
  }

  at::Tensor loss_of_part() {
    const Autocast narrow(o_.bf16, device());
    if (o_.group == nullptr || o_.group->size() == 1) return task_.loss() / double(o_.accumulate);
    const nn::InParts parts([&](const at::Tensor& x) { o_.group->sum(x); });
    return task_.loss() / double(o_.accumulate);
  }

  void one_step(Line& line) {
    at::manual_seed(chance_of_step());
    task_.module->train();
    optimizer_.forget_gradients();
    at::Tensor length;
    for (std::int64_t part = 0; part < o_.accumulate; ++part) {
      const bool is_last = part + 1 == o_.accumulate;
      const at::Tensor loss = loss_of_part();
      alive(o_);
      if (is_last && gradients_) gradients_->begin();
      loss.backward();
      alive(o_);
      if (is_last && !gradients_) length = optimizer_.length();
      const double found = loss.item<double>();  // a GPU is waited for here, and only here
      if (!std::isfinite(found)) {
        throw NumericalError(
            fmt::format("step {}: the loss is {}{}", step_ + 1, found, lost_in(task_)));
      }
      line.loss += found;
    }
    if (gradients_) {
      meet(line);
      length = optimizer_.length();
    }
    line.length = optimizer_.clip(o_.clip, length);
    if (!std::isfinite(line.length)) {
      throw NumericalError(fmt::format("step {}: the gradient is not finite, first that of {}",
                                       step_ + 1, lost_gradient(*task_.module)));
    }
    optimizer_.step(line.rate);
    if (average_) average_->update(*task_.module);
  }

  /// Gradients and loss of all ranks, and what else they must agree on.
  void meet(Line& line) {
    gradients_->finish();
    const auto all = o_.group->sum({line.loss, wants_end_ ? 1.0 : 0.0});
    line.loss = all[0];
    ends_ = all[1] > 0;
    if (saved_ >= 0) o_.group->saved(saved_);  // rank 0 has come back from it
  }

  Scores judge() {
    if (!task_.evaluate) return {};
    const at::NoGradGuard without;
    const Autocast narrow(o_.bf16, device());
    task_.module->eval();
    Scores scores = task_.evaluate();
    if (!average_) return scores;
    average_->exchange(*task_.module);
    for (const auto& [name, value] : task_.evaluate()) scores["ema_" + name] = value;
    average_->exchange(*task_.module);
    return scores;
  }

  void save() {
    const std::string lost = lost_parameter(*task_.module);
    if (!lost.empty()) {
      throw NumericalError(
          fmt::format("step {}: {} is not finite, so nothing was saved", step_, lost));
    }
    check_agreement();
    if (writes()) {
      files_.sync();  // a checkpoint never knows of a step that the files do not
      if (o_.group != nullptr) o_.group->allow(saving_seconds);
      save_checkpoint(o_.folder, step_, state(), o_.keep);
      if (o_.group != nullptr) {
        o_.group->saved(step_);
        o_.group->allow(0);
      }
    }
    saved_ = step_;
  }

  const Task& task_;
  const RunOptions& o_;
  Optimizer optimizer_;
  std::optional<Average> average_;
  std::optional<dist::Gradients> gradients_;
  std::optional<RunLock> lock_;
  RunFiles files_;
  std::int64_t step_ = 0, saved_ = -1;
  bool wants_end_ = false, ends_ = false;
};

}  // namespace

Outcome run(const Task& task, const RunOptions& options, const Told& told) {
  return Run(task, options).go(told);
}

}  // namespace foci::train
