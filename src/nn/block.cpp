// SPDX-License-Identifier: Apache-2.0
// The transformer block around a layer, and weights in files.
#include <foci/nn.hpp>

#include "nn/fused.hpp"
#include "nn/views.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>
#include <foci/watch.hpp>

#include <ATen/ops/from_blob.h>

#include <fmt/core.h>

#include <map>
#include <vector>

namespace foci::nn {
namespace {

/// Every parameter and buffer by its name in the state dict.
std::map<std::string, at::Tensor> state(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value();
  return tensors;
}

void check_names(const Safetensors& file, const std::map<std::string, at::Tensor>& mine,
                 const std::string& path) {
  for (const auto& [name, tensor] : mine) {
    if (!file.contains(name)) {
      throw InvalidArgument(
          fmt::format("{} has no tensor {}, which this module needs", path, name));
    }
    const View found = file.find(name);
    const bool scalar = tensor.dim() == 0 && found.count() == 1;
    const bool text = name.ends_with("mechanism");  // compared by what it means
    const auto sizes = tensor.sizes();
    if (!scalar && !text && Shape(found.sizes().begin(), found.sizes().end()) != sizes.vec()) {
      throw InvalidArgument(fmt::format("{}: {} has shape {}; this module needs {}", path, name,
                                        to_string(found.sizes()),
                                        to_string({sizes.data(), sizes.size()})));
    }
  }
  for (const std::string& name : file.names()) {
    if (!mine.contains(name)) {
      throw InvalidArgument(
          fmt::format("{} holds {}, which this module has no place for", path, name));
    }
  }
}

at::Tensor tensor_of(const View& view) {
  return at::from_blob(view.data, at::IntArrayRef(view.shape.data(), std::size_t(view.rank)),
                       at::TensorOptions().dtype(scalar_type(view.dtype)));
}

}  // namespace

MlpImpl::MlpImpl(std::int64_t dim, std::int64_t hidden) {
  fc1 = register_module("fc1", torch::nn::Linear(dim, hidden));
  fc2 = register_module("fc2", torch::nn::Linear(hidden, dim));
}

at::Tensor MlpImpl::forward(const at::Tensor& x) { return perceptron(*fc1, *fc2, x); }

BlockImpl::BlockImpl(const BlockOptions& options) {
  const std::int64_t dim = options.attention.dim;
  const auto norm = torch::nn::LayerNormOptions({dim}).eps(1e-6);
  attn = Attention(options.attention);  // first: it judges dim
  norm1 = register_module("norm1", torch::nn::LayerNorm(norm));
  register_module("attn", attn);
  norm2 = register_module("norm2", torch::nn::LayerNorm(norm));
  mlp = register_module("mlp", Mlp(dim, std::int64_t(double(dim) * options.mlp_ratio)));
}

BlockImpl::Result BlockImpl::finish(const at::Tensor& x, const Result& attended) {
  const at::Tensor y = x + attended.y;
  return {y + mlp(norm2(y)), attended.v};
}

BlockImpl::Result BlockImpl::forward(const at::Tensor& x, const at::Tensor& v_prev,
                                     const at::Tensor& key_mask, const at::Tensor& key_bias) {
  const Result done = finish(x, attn->forward(norm1(x), v_prev, key_mask, key_bias));
  if (Watch* watch = Watch::current()) watch->pass(done.y, key_mask);
  return done;
}

BlockImpl::Result BlockImpl::step(const at::Tensor& x, Cache& cache, const at::Tensor& v_prev,
                                  const at::Tensor& key_mask) {
  return finish(x, attn->step(norm1(x), cache, v_prev, key_mask));
}

void save_weights(const torch::nn::Module& module, const std::string& path) {
  std::map<std::string, View> views;
  std::vector<at::Tensor> held;  // until they are written
  for (const auto& [name, tensor] : state(module)) {
    held.push_back(tensor.detach().to(at::kCPU));
    if (held.back().dim() == 0) held.back() = held.back().view({1});
    views[name] = view_of(name, held.back());
  }
  write_safetensors(path, views, {{"format", "pt"}});
}

void load_weights(torch::nn::Module& module, const std::string& path) {
  const Safetensors file(path);
  const auto mine = state(module);
  check_names(file, mine, path);
  std::vector<AttentionImpl*> layers;
  for (const auto& item : module.named_modules("", true)) {
    auto* layer = dynamic_cast<AttentionImpl*>(item.value().get());
    if (!layer) continue;
    const std::string name = item.key().empty() ? "mechanism" : item.key() + ".mechanism";
    layer->check_mechanism(name, tensor_of(file.find(name)));
    layers.push_back(layer);
  }
  const at::NoGradGuard without;
  for (const auto& [name, tensor] : mine) {
    if (name.ends_with("mechanism")) continue;  // the same, as it is written here
    at::Tensor(tensor).copy_(tensor_of(file.find(name)).view(tensor.sizes()));
  }
  for (AttentionImpl* layer : layers) layer->loaded();
}

}  // namespace foci::nn
