// SPDX-License-Identifier: Apache-2.0
// Checkpoints of plain models: the weights that every mechanism has.
#include <foci/models.hpp>

#include "nn/views.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <ATen/ops/from_blob.h>

#include <fmt/core.h>

#include <algorithm>
#include <map>

namespace foci::models {
namespace {

/// Parameters of the model itself; those of a mechanism are named after the metric.
std::map<std::string, at::Tensor> plain_weights(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) {
    if (item.key().find(".metric_") == std::string::npos) tensors[item.key()] = item.value();
  }
  return tensors;
}

bool is_head(const std::string& name) { return name.starts_with("head."); }

bool is_headless(const Safetensors& file) {
  const auto names = file.names();
  return std::none_of(names.begin(), names.end(), is_head);
}

constexpr auto drop_it = "; for other classes leave it out: foci convert --drop head.";

}  // namespace

void load_plain(torch::nn::Module& module, const std::string& path) {
  const Safetensors file(path);
  auto mine = plain_weights(module);
  if (is_headless(file)) std::erase_if(mine, [](const auto& item) { return is_head(item.first); });
  for (const auto& [name, tensor] : mine) {
    if (!file.contains(name))
      throw InvalidArgument(fmt::format("{} has no tensor {}, which this model needs", path, name));
    const View found = file.find(name);
    const auto sizes = tensor.sizes();
    if (Shape(found.sizes().begin(), found.sizes().end()) != sizes.vec()) {
      throw InvalidArgument(fmt::format(
          "{}: {} has shape {}; this model needs {}{}", path, name, to_string(found.sizes()),
          to_string({sizes.data(), sizes.size()}), is_head(name) ? drop_it : ""));
    }
  }
  for (const std::string& name : file.names()) {
    if (!mine.contains(name)) {
      throw InvalidArgument(
          fmt::format("{} holds {}, which a plain model of this kind does not have", path, name));
    }
  }
  const at::NoGradGuard without;
  for (const auto& [name, tensor] : mine) {
    const View found = file.find(name);
    at::Tensor(tensor).copy_(at::from_blob(
        found.data, tensor.sizes(), at::TensorOptions().dtype(nn::scalar_type(found.dtype))));
  }
}

}  // namespace foci::models
