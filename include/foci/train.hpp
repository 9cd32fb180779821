// SPDX-License-Identifier: Apache-2.0
// Training of any module: the optimiser, the average of its parameters, checkpoints, and a run that
// a kill at any moment loses nothing of. All chance comes from the seed and the step, so a run that
// is resumed goes on bit for bit on a processor.
#pragma once

#include <foci/export.h>
#include <foci/run.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace foci::train {

using Tensors = std::map<std::string, at::Tensor>;

/// Steps over all parameters of a module, many tensors a call.
class FOCI_API Optimizer {
 public:
  Optimizer(const torch::nn::Module& module, const OptimizerOptions& options);
  /// The length of all gradients together, (); a GPU is not waited for.
  at::Tensor length() const;
  /// Gradients longer than `limit` are cut to it, unless that is 0; gives their length as it was.
  double clip(double limit, const at::Tensor& length);
  double clip(double limit) { return clip(limit, length()); }
  void step(double rate);
  void forget_gradients();
  /// "exp_avg.<parameter>" and so on, and "steps" (1).
  Tensors state() const;
  /// All or nothing; throws InvalidArgument.
  void load(const Tensors& state);

 private:
  struct Group {
    double decay = 0;
    std::vector<std::string> names;
    std::vector<at::Tensor> parameters, first, second;  // moments; sgd: first alone
  };
  struct Known;
  Known gather(Group& group) const;
  std::vector<at::Tensor> gradients() const;
  void step_adamw(Group& group, double rate);
  void step_sgd(Group& group, double rate);

  OptimizerOptions options_;
  std::vector<Group> groups_;
  std::int64_t steps_ = 0;
};

/// An exponential average of the parameters.
class FOCI_API Average {
 public:
  Average(const torch::nn::Module& module, double decay);
  void update(const torch::nn::Module& module);
  /// The parameters of the module and the average change places.
  void exchange(torch::nn::Module& module);
  const Tensors& tensors() const { return tensors_; }
  /// All or nothing; throws InvalidArgument.
  void load(const Tensors& tensors);

 private:
  double decay_;
  Tensors tensors_;
};

/// What a checkpoint holds. `average` may be absent.
struct State {
  torch::nn::Module* module = nullptr;
  Optimizer* optimizer = nullptr;
  Average* average = nullptr;
};
/// Writes checkpoints/step-N/{model,ema,training}.safetensors into a run's folder, training last: a
/// checkpoint without it is not one. Older ones go when there are more than `keep`.
FOCI_API void save_checkpoint(const std::string& run, std::int64_t step, const State& state,
                              int keep);
/// Reads the last whole one back and gives its step, or -1 where there is none.
FOCI_API std::int64_t load_checkpoint(const std::string& run, const State& state);

/// What is trained, and how it is judged. A module that is resumed must be held by a shared_ptr.
struct Task {
  torch::nn::Module* module = nullptr;
  std::int64_t samples = 1;                               ///< of a batch
  std::function<void(std::int64_t batch)> start_at = {};  ///< the batch that loss() is to take next
  /// Of the next batch, a mean; of a group's ranks each its part, which add up to it.
  std::function<at::Tensor()> loss = {};
  std::function<Scores()> evaluate = {};
  std::function<std::string()> sample = {};  ///< of what the module makes, where it is evaluated
  /// The first layer whose output was not finite on the last batch; empty when all were.
  std::function<std::string()> first_lost = {};
};

/// Trains to the schedule's last step, or until `told` gives false, which saves and ends; in a
/// group that of any rank, a step later. A loss or a gradient that is not finite throws
/// NumericalError with the step and the first layer that is not; the last checkpoint stays. In the
/// folder, which one process at a time has: metrics.jsonl, events of TensorBoard, checkpoints.
FOCI_API Outcome run(const Task& task, const RunOptions& options, const Told& told = {});

}  // namespace foci::train
