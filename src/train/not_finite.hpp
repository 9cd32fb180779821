// SPDX-License-Identifier: Apache-2.0
// The first tensor of a module, or the first of its layers by its output, that holds a number which
// is not finite, by its name; empty where all are.
#pragma once

#include <foci/nn.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace foci::train {

inline bool is_lost(const at::Tensor& x) { return !x.isfinite().all().item<bool>(); }

inline std::string lost_parameter(const torch::nn::Module& module) {
  const at::NoGradGuard without;
  for (const auto& item : module.named_parameters()) {
    if (is_lost(item.value())) return item.key();
  }
  return "";
}

/// Of what a checkpoint holds: buffers too.
inline std::string lost_state(const torch::nn::Module& module) {
  const std::string parameter = lost_parameter(module);
  if (!parameter.empty()) return parameter;
  for (const auto& item : module.named_buffers()) {
    if (is_lost(item.value())) return item.key();
  }
  return "";
}

inline std::string lost_gradient(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    if (gradient.defined() && is_lost(gradient)) return item.key();
  }
  return "";
}

/// Of blocks that x (B,N,dim) goes through, each given the values of the one below: "blocks.3".
inline std::string lost_block(std::vector<nn::Block>& blocks, at::Tensor& x) {
  at::Tensor below;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto out = blocks[i]->forward(x, below);
    if (is_lost(out.y)) return "blocks." + std::to_string(i);
    x = out.y;
    below = out.v;
  }
  return "";
}

}  // namespace foci::train
