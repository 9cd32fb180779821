// SPDX-License-Identifier: Apache-2.0
// The loop of training. A step's chance is seeded by the run's seed and the step, so a checkpoint
// needs no generator's state.
#include <foci/train.hpp>

#include "train/autocast.hpp"
#include "train/checkpoint.hpp"
#include "train/memory.hpp"
#include "train/not_finite.hpp"
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

#include <chrono>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace foci::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t step_stream = 0x57e9;  // apart from those of the data

constexpr double saving_seconds = 600;  // a slow disk is no rank that hangs

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// "; first not finite: the output of blocks.3": a parameter, else a layer's output.
std::string lost_in(const Task& task) {
  const at::NoGradGuard without;
  const std::string parameter = lost_parameter(*task.module);
  if (!parameter.empty()) return "; first not finite: " + parameter;
  const std::string layer = task.first_lost ? task.first_lost() : "";
  return layer.empty() ? "" : "; first not finite: the output of " + layer;
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
      clear_halves(o.folder);
      if (o.resume) step_ = std::max<std::int64_t>(load_checkpoint(o.folder, state()), 0);
      unjudged_ = files_.open(o.folder, step_);
    }
    if (o.group != nullptr) {
      share_beginning();
      gradients_.emplace(*o.group, *task.module);
    }
    if (step_ > 0) saved_ = step_;
  }

  /// What is whole is saved before a fault goes on its way: resumed, the run meets it again where
  /// it stood. Numbers that are not finite are no such fault, they come from the weights; nor is
  /// another process that is lost, which may leave this one no time.
  Outcome go(const Told& told) try {
    const auto begin = Clock::now();
    Outcome outcome = steps(told);
    outcome.seconds = since(begin);
    return outcome;
  } catch (const NumericalError&) {
    throw;
  } catch (const dist::Lost&) {
    throw;
  } catch (...) {
    if (writes() && keeps_on_fault_) keep_whole_step();
    throw;
  }

 private:
  bool writes() const { return !o_.folder.empty() && is_first(o_); }

  Outcome steps(const Told& told) {
    const std::int64_t first = step_, last = o_.schedule.steps;
    Outcome outcome;
    double trained = 0;  // seconds without evaluation
    bool goes_on = !unjudged_ || finish(*std::exchange(unjudged_, {}), outcome, told);
    if (goes_on && step_ < last) task_.start_at(step_ * o_.accumulate);
    while (step_ < last && goes_on && !is_told_to_stop(o_)) {
      const auto start = Clock::now();
      Line line{.rate = rate_at(o_.schedule, step_)};
      one_step(line);
      trained += since(start);
      line.step = ++step_;
      const double a_step = trained / double(step_ - first);
      line.per_second = double(task_.samples * o_.accumulate) / a_step;
      line.left = a_step * double(last - step_);
      line.memory = used_bytes(task_.module->parameters().at(0).device());
      goes_on = finish(line, outcome, told);
    }
    if (!o_.folder.empty() && step_ > 0 && saved_ != step_) save();  // told to stop just now
    bool judged = !unjudged_;
    if (judged && outcome.scores.empty() && step_ == last)
      judged = comes_to_its_end([&] { outcome.scores = judge(); });
    outcome.steps = step_;
    outcome.finished = step_ == last && judged;
    return outcome;
  }

  /// What follows a step; whether the next one does. A step is saved before it is judged, which
  /// takes long and may fail.
  bool finish(Line line, Outcome& outcome, const Told& told) {
    const bool saves = !o_.folder.empty() && is_time(o_.save_every);
    line.steps = o_.schedule.steps;
    bool goes_on = true;
    if (task_.evaluate && is_time(o_.evaluate_every)) {
      unjudged_ = line;
      if (saves && saved_ != step_) save();
      goes_on = comes_to_its_end([&] {
        line.scores = judge();
        if (task_.sample) line.sample = task_.sample();
      });
      if (goes_on) {
        unjudged_.reset();
        outcome.scores = line.scores;
      } else {
        line = *unjudged_;
      }
    }
    if (writes()) files_.add(line);
    outcome.loss = line.loss;
    outcome.per_second = line.per_second;
    goes_on = goes_on_after(!told || told(line)) && goes_on;
    if (!o_.folder.empty() && (!goes_on || saves) && saved_ != step_) save();
    return goes_on;
  }

  /// After a fault within a step or while it was judged; the fault's own message is the one that
  /// counts.
  void keep_whole_step() try {
    const at::NoGradGuard without;
    auto was = before_.begin();
    for (at::Tensor& buffer : task_.module->buffers()) {
      if (was != before_.end()) buffer.copy_(*was++);
    }
    if (unjudged_) files_.add(*unjudged_);
    if (step_ > 0 && saved_ != step_ && lost_state(*task_.module).empty()) write_checkpoint();
  } catch (const std::exception& fault) {
    warn(fmt::format("step {} could not be saved: {}", step_, fault.what()));
  }

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

  /// So does the step, and whether it is judged; rank 0 may have read all of it from a checkpoint.
  void share_beginning() {
    take_state();
    const auto all = o_.group->sum({is_first(o_) ? double(step_) : 0.0, unjudged_ ? 1.0 : 0.0});
    step_ = std::int64_t(all[0]);
    if (all[1] > 0 && !unjudged_) unjudged_ = Line{.step = step_};
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

  double number_in(const at::Tensor& loss) const {
    const at::Tensor own = loss.detach();
    return (o_.group == nullptr ? own : o_.group->fetched(own)).item<double>();
  }

  /// Buffers change in passes forward, parameters after the last one alone.
  void one_step(Line& line) {
    at::manual_seed(chance_of_step());
    task_.module->train();
    optimizer_.forget_gradients();
    for (const at::Tensor& buffer : task_.module->buffers())
      before_.push_back(buffer.detach().clone());
    keeps_on_fault_ = true;
    at::Tensor length;
    for (std::int64_t part = 0; part < o_.accumulate; ++part) {
      const bool is_last = part + 1 == o_.accumulate;
      const at::Tensor loss = loss_of_part();
      alive(o_);
      if (is_last && gradients_) gradients_->begin();
      loss.backward();
      alive(o_);
      if (is_last && !gradients_) length = optimizer_.length();
      const double found = number_in(loss);  // a GPU is waited for here, and only here
      if (!std::isfinite(found)) {
        throw NumericalError(
            fmt::format("step {}: the loss is {}{}", step_ + 1, found, lost_in(task_)));
      }
      line.loss += found;
    }
    keeps_on_fault_ = false;
    if (gradients_) {
      meet(line);
      length = optimizer_.length();
    }
    line.length = optimizer_.clip(o_.clip, length);
    if (!std::isfinite(line.length)) {
      const std::string lost = lost_gradient(*task_.module);
      throw NumericalError(fmt::format("step {}: the gradient is not finite, first that of {}",
                                       step_ + 1, lost.empty() ? "all of them together" : lost));
    }
    optimizer_.step(line.rate);
    if (average_) average_->update(*task_.module);
    before_.clear();
  }

  /// Gradients and loss of all ranks, and what else they must agree on.
  void meet(Line& line) {
    gradients_->finish();
    const auto all = o_.group->sum({line.loss, wants_end_ ? 1.0 : 0.0});
    line.loss = all[0];
    ends_ = all[1] > 0;
    if (saved_ >= 0) o_.group->saved(saved_);  // rank 0 has come back from it
  }

  /// An evaluation; false where it was told to stop before its end.
  template <class What>
  bool comes_to_its_end(const What& what) {
    keeps_on_fault_ = true;
    bool ended = true;
    try {
      what();
    } catch (const ToldToStop&) {
      ended = false;
    }
    keeps_on_fault_ = false;
    return ended;
  }

  Scores judge() {
    if (!task_.evaluate) return {};
    Scores scores = evaluated();
    if (!average_) return scores;
    for (const auto& [name, value] : judge_average()) scores["ema_" + name] = value;
    return scores;
  }

  /// Autocast keeps weights in bf16 for as long as it lives: not those of the average with others.
  Scores evaluated() {
    const at::NoGradGuard without;
    const Autocast narrow(o_.bf16, device());
    task_.module->eval();
    return task_.evaluate();
  }

  /// The weights are back in their place whatever happens.
  Scores judge_average() {
    const auto exchange = [&] {
      keeps_on_fault_ = false;  // halfway they are neither
      average_->exchange(*task_.module);
      keeps_on_fault_ = true;
    };
    exchange();
    Scores scores;
    try {
      scores = evaluated();
    } catch (...) {
      exchange();
      throw;
    }
    exchange();
    return scores;
  }

  void save() {
    const std::string lost = lost_state(*task_.module);
    if (!lost.empty()) {
      throw NumericalError(
          fmt::format("step {}: {} is not finite, so nothing was saved", step_, lost));
    }
    check_agreement();
    if (writes()) write_checkpoint();
    saved_ = step_;
  }

  void write_checkpoint() {
    files_.sync();  // a checkpoint never knows of a step that the files do not
    if (unjudged_) RunFiles::put_aside(*unjudged_, checkpoint_of(o_.folder, step_));
    if (o_.group != nullptr) o_.group->allow(saving_seconds);
    save_checkpoint(o_.folder, step_, state(), o_.keep);
    if (o_.group != nullptr) {
      o_.group->saved(step_);
      o_.group->allow(0);
    }
  }

  const Task& task_;
  const RunOptions& o_;
  Optimizer optimizer_;
  std::optional<Average> average_;
  std::optional<dist::Gradients> gradients_;
  std::optional<RunLock> lock_;
  RunFiles files_;
  std::int64_t step_ = 0, saved_ = -1;
  std::optional<Line> unjudged_;    // of a step that is done, and to be judged
  std::vector<at::Tensor> before_;  // buffers, while a step is under way
  bool keeps_on_fault_ = false;     // the weights are those of `step_`
  bool wants_end_ = false, ends_ = false;
};

}  // namespace

Outcome run(const Task& task, const RunOptions& options, const Told& told) {
  return Run(task, options).go(told);
}

}  // namespace foci::train
