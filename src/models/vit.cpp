// SPDX-License-Identifier: Apache-2.0
// The vision transformer: patches and a class token through blocks, each given the values of the
// one below.
#include "models/blocks.hpp"

#include "nn/fused.hpp"

#include <foci/error.hpp>
#include <foci/watch.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

namespace foci::models {
namespace {

void check(const VitOptions& o) {
  if (o.patch < 1 || o.image < o.patch || o.image % o.patch != 0) {
    throw InvalidArgument(fmt::format(
        "images of {} pixels in patches of {}: the first must be a multiple of the second", o.image,
        o.patch));
  }
  if (o.channels < 1 || o.classes < 0 || o.depth < 1) {
    throw InvalidArgument(
        fmt::format("{} channels, {} classes and {} layers; classes may be 0, the others not",
                    o.channels, o.classes, o.depth));
  }
  if (!(o.drop_path >= 0 && o.drop_path < 1)) {
    throw InvalidArgument(fmt::format("drop_path is {:g}; it must lie in [0, 1)", o.drop_path));
  }
}

/// How likely the branches of layer i are left out.
double drop_of(const Passing& how, std::size_t i, std::size_t layers) {
  return layers < 2 ? 0 : how.drop_path * double(i) / double(layers - 1);
}

/// 0 with probability p, else 1 / (1 - p).
at::Tensor drawn(at::IntArrayRef shape, double p, const at::TensorOptions& options) {
  return at::empty(shape, options).bernoulli_(1 - p).div_(1 - p);
}

/// A branch is added where the next norm reads the sum.
at::Tensor fused_through(std::vector<nn::Block>& blocks, const at::Tensor& tokens,
                         const Passing& how, torch::nn::LayerNormImpl& norm) {
  const at::ScalarType narrow = nn::narrow_type(tokens);
  at::Tensor x = tokens.to(at::kFloat), below;
  nn::Branch branch;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    nn::BlockImpl& block = *blocks[i];
    const double p = how.training ? drop_of(how, i, blocks.size()) : 0;
    const auto scale = [&] {
      return p == 0 ? at::Tensor() : drawn({x.size(0)}, p, x.options().requires_grad(false));
    };
    const nn::Normed first = nn::add_norm(x, branch, *block.norm1, narrow);
    const auto attended = block.attn->forward(first.y, below, how.key_mask);
    below = attended.v;
    branch = {attended.y, scale()};
    const nn::Normed second = nn::add_norm(first.x, branch, *block.norm2, narrow);
    branch = {block.mlp(second.y), scale()};
    x = second.x;
  }
  return nn::add_norm(x, branch, norm, at::kFloat).y;
}

/// (B,C,rows p,columns p) as the numbers of each patch, (B,rows columns,C p p), in 16 bits.
at::Tensor patches_of(const at::Tensor& images, std::int64_t p) {
  const auto size = [&](int axis) { return images.size(axis); };
  return images.reshape({size(0), size(1), size(2) / p, p, size(3) / p, p})
      .permute({0, 2, 4, 1, 3, 5})
      .to(images.options().dtype(nn::narrow_type(images)), /*non_blocking=*/false, /*copy=*/false,
          at::MemoryFormat::Contiguous)
      .view({size(0), size(2) / p * (size(3) / p), size(1) * p * p});
}

}  // namespace

void start_like_timm(torch::nn::Module& module) {
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto* linear = child->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, 0.02);
      if (linear->bias.defined()) linear->bias.zero_();
    }
  }
}

std::vector<nn::Block> add_blocks(torch::nn::Module& owner, const BlockSizes& sizes,
                                  const Mechanism& mechanism) {
  auto all = std::make_shared<torch::nn::Module>();
  std::vector<nn::Block> blocks;
  for (std::int64_t i = 0; i < sizes.depth; ++i) {
    nn::AttentionOptions attention = attention_of(mechanism, i, sizes.depth);
    attention.dim = sizes.dim;
    attention.heads = sizes.heads;
    attention.head_dim = sizes.head_dim;
    blocks.push_back(all->register_module(std::to_string(i),
                                          nn::Block(nn::BlockOptions{attention, sizes.mlp_ratio})));
  }
  owner.register_module("blocks", all);
  return blocks;
}

at::Tensor through(std::vector<nn::Block>& blocks, const at::Tensor& tokens, const Passing& how,
                   torch::nn::LayerNorm& norm) {
  nn::Watch* watch = nn::Watch::current();
  const bool drops_out = how.training && how.dropout > 0;
  if (nn::fuses(tokens) && !watch && !drops_out) return fused_through(blocks, tokens, how, *norm);
  at::Tensor x = tokens, below;  // below: the values of the layer below
  if (watch) watch->pass(x, how.key_mask);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    nn::BlockImpl& block = *blocks[i];
    const double p = drop_of(how, i, blocks.size());
    const auto add = [&](const at::Tensor& branch) {
      x = x + drop_path(at::dropout(branch, how.dropout, how.training), p, how.training);
    };
    const auto attended = block.attn->forward(block.norm1(x), below, how.key_mask);
    add(attended.y);
    add(block.mlp(block.norm2(x)));
    below = attended.v;
    if (watch) watch->pass(x, how.key_mask);
  }
  return norm(x);
}

at::Tensor drop_path(const at::Tensor& branch, double p, bool training) {
  if (!training || p == 0) return branch;
  std::vector<std::int64_t> shape(std::size_t(branch.dim()), 1);
  shape[0] = branch.size(0);
  return branch * drawn(shape, p, branch.options());
}

VitImpl::VitImpl(const VitOptions& options) : options_(options) {
  check(options);
  const std::int64_t dim = options.dim, side = options.image / options.patch;
  auto patch_embed = std::make_shared<torch::nn::Module>();
  proj = patch_embed->register_module(
      "proj",
      torch::nn::Conv2d(
          torch::nn::Conv2dOptions(options.channels, dim, options.patch).stride(options.patch)));
  cls_token = register_parameter("cls_token", at::zeros({1, 1, dim}));
  pos_embed = register_parameter("pos_embed", at::zeros({1, 1 + side * side, dim}));
  register_module("patch_embed", patch_embed);
  blocks = add_blocks(
      *this,
      {.dim = dim, .depth = options.depth, .heads = options.heads, .mlp_ratio = options.mlp_ratio},
      options.mechanism);
  norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim}).eps(1e-6)));
  if (options.classes > 0) head = register_module("head", torch::nn::Linear(dim, options.classes));
  const at::NoGradGuard without;
  start_like_timm(*this);
  cls_token.normal_(0, 1e-6);
  pos_embed.normal_(0, 0.02);
}

at::Tensor VitImpl::tokens(const at::Tensor& images) {
  const VitOptions& o = options_;
  if (images.dim() != 4 || images.size(1) != o.channels || images.size(2) != o.image ||
      images.size(3) != o.image) {
    throw InvalidArgument(fmt::format("images have shape {}; this model takes (batch, {}, {}, {})",
                                      to_string(std::span(images.sizes())), o.channels, o.image,
                                      o.image));
  }
  at::Tensor x = nn::fuses(images)  // (B,P,dim)
                     ? nn::linear(patches_of(images, o.patch), proj->weight.flatten(1), proj->bias)
                     : proj(images).flatten(2).transpose(1, 2);
  x = at::cat({cls_token.expand({x.size(0), -1, -1}), x}, 1) + pos_embed;
  return through(blocks, x, {.drop_path = o.drop_path, .training = is_training()}, norm);
}

at::Tensor VitImpl::forward(const at::Tensor& images) {
  if (head.is_empty()) throw InvalidArgument("this model has 0 classes: it gives tokens alone");
  return head(tokens(images).select(1, 0));
}

}  // namespace foci::models
