// SPDX-License-Identifier: Apache-2.0
// AdamW and SGD over lists of tensors: a handful of calls a step whatever the number of parameters,
// which is what a GPU wants.
#include <foci/train.hpp>

#include <foci/error.hpp>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <ATen/ops/_fused_adamw.h>
#endif
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <fmt/core.h>

#include <cmath>
#include <numbers>

namespace foci::train {
namespace {

/// timm's rule: matrices and kernels, but not positions and tokens; nor a metric.
bool decays(const std::string& name, const at::Tensor& parameter) {
  for (const char* without : {"pos_embed", "positions", "cls_token", "cls_emb"}) {
    if (name.ends_with(without)) return false;
  }
  return parameter.dim() > 1 && name.find("metric_") == std::string::npos;
}

#if TORCH_VERSION_MAJOR >= 2
/// Whether torch's single pass takes them: f32 on one GPU, each gradient laid out like its
/// parameter.
bool go_at_once(const std::vector<at::Tensor>& parameters,
                const std::vector<at::Tensor>& gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor &p = parameters[i], &d = gradients[i];
    if (!p.is_cuda() || p.device() != parameters[0].device() || p.scalar_type() != at::kFloat)
      return false;
    if (d.device() != p.device() || d.scalar_type() != at::kFloat || d.strides() != p.strides() ||
        !p.is_non_overlapping_and_dense())
      return false;
  }
  return true;
}
#endif

}  // namespace

/// The parameters that have a gradient, and their moments.
struct Optimizer::Known {
  std::vector<at::Tensor> parameters, gradients, first, second;
};

Optimizer::Optimizer(const torch::nn::Module& module, const OptimizerOptions& options)
    : options_(options), groups_(2) {
  groups_[0].decay = options.weight_decay;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad()) continue;
    Group& group = groups_[decays(item.key(), parameter) ? 0 : 1];
    group.names.push_back(item.key());
    group.parameters.push_back(parameter);
    group.first.push_back(at::zeros_like(parameter));
    if (options.algorithm == Algorithm::adamw) group.second.push_back(at::zeros_like(parameter));
  }
}

Optimizer::Known Optimizer::gather(Group& group) const {
  Known known;
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const at::Tensor& gradient = group.parameters[i].grad();
    if (!gradient.defined()) continue;
    known.parameters.push_back(group.parameters[i]);
    known.gradients.push_back(gradient);
    known.first.push_back(group.first[i]);
    if (!group.second.empty()) known.second.push_back(group.second[i]);
  }
  return known;
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> all;
  for (const Group& group : groups_) {
    for (const at::Tensor& parameter : group.parameters) {
      if (parameter.grad().defined()) all.push_back(parameter.grad());
    }
  }
  return all;
}

at::Tensor Optimizer::length() const {
  const at::NoGradGuard without;
  const std::vector<at::Tensor> all = gradients();
  return all.empty() ? at::zeros({}) : at::stack(at::_foreach_norm(all, 2)).norm();
}

double Optimizer::clip(double limit, const at::Tensor& length) {
  const at::NoGradGuard without;
  const double found = length.item<double>();
  if (limit > 0 && found > limit) at::_foreach_mul_(gradients(), limit / found);
  return found;
}

void Optimizer::step_adamw(Group& group, double rate) {
  const OptimizerOptions& o = options_;
  Known known = gather(group);
  if (known.parameters.empty()) return;
#if TORCH_VERSION_MAJOR >= 2
  if (go_at_once(known.parameters, known.gradients)) {
    const std::vector<at::Tensor> steps(
        known.parameters.size(),
        at::full({}, double(steps_), known.parameters[0].options().requires_grad(false)));
    at::_fused_adamw_(known.parameters, known.gradients, known.first, known.second, {}, steps, rate,
                      o.beta1, o.beta2, group.decay, o.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false);
    return;
  }
#endif
  const double first = 1 - std::pow(o.beta1, double(steps_));
  const double second = 1 - std::pow(o.beta2, double(steps_));
  if (group.decay != 0) at::_foreach_mul_(known.parameters, 1 - rate * group.decay);
  at::_foreach_mul_(known.first, o.beta1);
  at::_foreach_add_(known.first, known.gradients, 1 - o.beta1);
  at::_foreach_mul_(known.second, o.beta2);
  at::_foreach_addcmul_(known.second, known.gradients, known.gradients, 1 - o.beta2);
  std::vector<at::Tensor> by = at::_foreach_sqrt(known.second);
  at::_foreach_div_(by, std::sqrt(second));
  at::_foreach_add_(by, o.epsilon);
  at::_foreach_addcdiv_(known.parameters, known.first, by, -rate / first);
}

void Optimizer::step_sgd(Group& group, double rate) {
  Known known = gather(group);
  if (known.parameters.empty()) return;
  if (group.decay != 0) at::_foreach_add_(known.gradients, known.parameters, group.decay);
  at::_foreach_mul_(known.first, options_.momentum);
  at::_foreach_add_(known.first, known.gradients, 1);
  at::_foreach_add_(known.gradients, known.first, options_.momentum);
  at::_foreach_add_(known.parameters, known.gradients, -rate);
}

void Optimizer::step(double rate) {
  const at::NoGradGuard without;
  ++steps_;
  for (Group& group : groups_) {
    options_.algorithm == Algorithm::adamw ? step_adamw(group, rate) : step_sgd(group, rate);
  }
}

void Optimizer::forget_gradients() {
  for (Group& group : groups_) {
    for (at::Tensor& parameter : group.parameters) parameter.mutable_grad() = at::Tensor();
  }
}

Tensors Optimizer::state() const {
  Tensors all{{"steps", at::full({1}, steps_, at::kLong)}};
  for (const Group& group : groups_) {
    for (std::size_t i = 0; i < group.names.size(); ++i) {
      all["exp_avg." + group.names[i]] = group.first[i];
      if (!group.second.empty()) all["exp_avg_sq." + group.names[i]] = group.second[i];
    }
  }
  return all;
}

void Optimizer::load(const Tensors& state) {
  const Tensors mine = this->state();
  for (const auto& [name, tensor] : mine) {
    const auto found = state.find(name);
    if (found == state.end() || found->second.sizes() != tensor.sizes())
      throw InvalidArgument(fmt::format("the optimiser's state has no {} of this shape", name));
  }
  const at::NoGradGuard without;
  for (const auto& [name, tensor] : mine) at::Tensor(tensor).copy_(state.at(name));
  steps_ = state.at("steps").item<std::int64_t>();
}

double rate_at(const Schedule& s, std::int64_t step) {
  if (step < s.warmup) return s.start + (s.rate - s.start) * double(step) / double(s.warmup);
  const std::int64_t course = s.steps - s.warmup;
  const double share = course < 1 ? 1 : std::min(1.0, double(step - s.warmup) / double(course));
  switch (s.course) {
    case Course::cosine:
      return s.last + (s.rate - s.last) * 0.5 * (1 + std::cos(std::numbers::pi * share));
    case Course::poly:
      return s.last + (s.rate - s.last) * std::pow(1 - share, s.power);
    case Course::constant:
      return s.rate;
  }
  return s.rate;
}

Average::Average(const torch::nn::Module& module, double decay) : decay_(decay) {
  for (const auto& item : module.named_parameters())
    tensors_[item.key()] = item.value().detach().clone();
}

void Average::update(const torch::nn::Module& module) {
  const at::NoGradGuard without;
  std::vector<at::Tensor> mine, theirs;
  for (const auto& item : module.named_parameters()) {
    mine.push_back(tensors_.at(item.key()));
    theirs.push_back(item.value());
  }
  at::_foreach_mul_(mine, decay_);
  at::_foreach_add_(mine, theirs, 1 - decay_);
}

void Average::exchange(torch::nn::Module& module) {
  const at::NoGradGuard without;
  for (const auto& item : module.named_parameters()) {
    at::Tensor& mine = tensors_.at(item.key());
    const at::Tensor theirs = item.value().detach().clone();
    at::Tensor(item.value()).copy_(mine);
    mine.copy_(theirs);
  }
}

void Average::load(const Tensors& tensors) {
  for (const auto& [name, tensor] : tensors_) {
    const auto found = tensors.find(name);
    if (found == tensors.end() || found->second.sizes() != tensor.sizes())
      throw InvalidArgument(fmt::format("the average has no {} of this shape", name));
  }
  for (auto& [name, tensor] : tensors_) tensor.copy_(tensors.at(name));
}

}  // namespace foci::train
