// SPDX-License-Identifier: Apache-2.0
// The language model: tokens and positions through pre-norm blocks, each given the values of the
// one below, then a norm and the head. Whole sequences and, from a cache, tokens as they come.
#include "models/rotary.hpp"

#include <foci/error.hpp>
#include <foci/watch.hpp>

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

#include <cmath>

namespace foci::models {
namespace {

void check(const LanguageOptions& o) {
  if (o.vocabulary < 1 || o.context < 1 || o.depth < 1 || o.hidden < 0) {
    throw InvalidArgument(
        fmt::format("a vocabulary of {}, a context of {} and {} layers; each must be at least 1",
                    o.vocabulary, o.context, o.depth));
  }
  for (const auto& [name, p] :
       {std::pair("dropout", o.dropout), {"head_dropout", o.head_dropout}}) {
    if (!(p >= 0 && p < 1))
      throw InvalidArgument(fmt::format("{} is {:g}; it must lie in [0, 1)", name, p));
  }
  if (o.positions == Positions::rotary && o.heads > 0 && o.dim / o.heads % 2 != 0) {
    throw InvalidArgument(
        fmt::format("rotary positions need an even head size; it is {}", o.dim / o.heads));
  }
}

nn::AttentionOptions layer_of(const LanguageOptions& o, std::int64_t index) {
  Mechanism mechanism = o.mechanism;
  mechanism.words["causal"] = "true";
  nn::AttentionOptions layer = attention_of(mechanism, index, o.depth);
  layer.dim = o.dim;
  layer.heads = o.heads;
  layer.kv_heads = o.kv_heads == 0 ? o.heads : o.kv_heads;
  layer.head_dim = o.heads > 0 && o.dim % o.heads == 0 ? o.dim / o.heads : 0;
  layer.qkv_bias = layer.proj_bias = o.biases;
  return layer;
}

/// GPT-2's: 0.02 wide, what is added to the residual stream less the deeper the model is.
void start(LanguageImpl& model, std::int64_t depth) {
  const at::NoGradGuard without;
  for (const auto& child : model.modules(/*include_self=*/false)) {
    if (auto* linear = child->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, 0.02);
      if (linear->bias.defined()) linear->bias.zero_();
    }
  }
  for (const LanguageBlock& block : model.blocks) {
    for (const auto& linear : {block->attn->proj, block->fc2})
      linear->weight.div_(std::sqrt(2 * double(depth)));
  }
  model.embed->weight.normal_(0, 0.02);
  if (model.positions.defined()) model.positions.normal_(0, 0.02);
}

}  // namespace

LanguageNormImpl::LanguageNormImpl(std::int64_t dim, Norm kind, double eps) : eps_(eps) {
  weight = register_parameter("weight", at::ones({dim}));
  if (kind == Norm::layer) bias = register_parameter("bias", at::zeros({dim}));
}

at::Tensor LanguageNormImpl::forward(const at::Tensor& x) {
  if (bias.defined()) return at::layer_norm(x, weight.sizes(), weight, bias, eps_);
  return x * (x.square().mean(-1, true) + eps_).rsqrt() * weight;
}

LanguageBlockImpl::LanguageBlockImpl(const LanguageOptions& o, std::int64_t index)
    : activation_(o.activation) {
  const nn::AttentionOptions attention = layer_of(o, index);
  const std::int64_t hidden = o.hidden == 0 ? 4 * o.dim : o.hidden;
  const auto linear = [&](std::int64_t from, std::int64_t to) {
    return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(o.biases));
  };
  attn = nn::Attention(attention);  // first: it judges dim
  norm1 = register_module("norm1", LanguageNorm(o.dim, o.norm, o.norm_eps));
  register_module("attn", attn);
  norm2 = register_module("norm2", LanguageNorm(o.dim, o.norm, o.norm_eps));
  auto mlp = std::make_shared<torch::nn::Module>();
  fc1 = mlp->register_module("fc1", linear(o.dim, hidden));
  if (o.activation == Activation::swiglu)
    gate = mlp->register_module("gate", linear(o.dim, hidden));
  fc2 = mlp->register_module("fc2", linear(hidden, o.dim));
  register_module("mlp", mlp);
  if (o.positions == Positions::rotary)
    rotary_ = std::make_unique<RotaryAttention>(attn, attention, o.pairs);
}

LanguageBlockImpl::~LanguageBlockImpl() = default;

at::Tensor LanguageBlockImpl::mlp(const at::Tensor& x) {
  const at::Tensor y = fc1(x);
  if (activation_ == Activation::swiglu) return fc2(at::silu(gate(x)) * y);
  return fc2(at::gelu(y, activation_ == Activation::gelu ? "none" : "tanh"));
}

LanguageCache::LanguageCache(std::int64_t capacity) : capacity_(capacity) {
  if (capacity < 1) {
    throw InvalidArgument(fmt::format("a cache of {} tokens; it must hold at least 1", capacity));
  }
}
LanguageCache::~LanguageCache() = default;
LanguageCache::LanguageCache(LanguageCache&&) noexcept = default;
LanguageCache& LanguageCache::operator=(LanguageCache&&) noexcept = default;

LanguageImpl::LanguageImpl(const LanguageOptions& options) : options_(options) {
  check(options);
  const std::int64_t dim = options.dim;
  auto all = std::make_shared<torch::nn::Module>();
  for (std::int64_t i = 0; i < options.depth; ++i)
    blocks.push_back(all->register_module(std::to_string(i), LanguageBlock(options, i)));
  embed = register_module("embed", torch::nn::Embedding(options.vocabulary, dim));
  if (options.positions == Positions::learned)
    positions = register_parameter("positions", at::zeros({options.context, dim}));
  register_module("blocks", all);
  norm = register_module("norm", LanguageNorm(dim, options.norm, options.norm_eps));
  if (!options.tied) {
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(dim, options.vocabulary).bias(false)));
  }
  start(*this, options.depth);
}

at::Tensor LanguageImpl::run(const at::Tensor& tokens, LanguageCache* cache, Parts* parts) {
  const LanguageOptions& o = options_;
  const std::int64_t first = cache ? cache->length_ : 0;
  const std::int64_t room = cache ? std::min(cache->capacity_, o.context) : o.context;
  if (tokens.dim() != 2 || tokens.size(0) < 1 || tokens.size(1) < 1) {
    throw InvalidArgument(fmt::format("tokens have shape {}; they must be (batch, tokens)",
                                      to_string(std::span(tokens.sizes()))));
  }
  const std::int64_t N = tokens.size(1);
  if (first + N > room)
    throw InvalidArgument(fmt::format("{} tokens after {}; there is room for {}", N, first, room));
  const auto drop = [&](const at::Tensor& x) { return at::dropout(x, o.dropout, is_training()); };
  at::Tensor x = embed(tokens);  // (B,N,dim)
  if (positions.defined()) x = x + positions.slice(0, first, first + N);
  x = drop(x);
  nn::Watch* watch = cache ? nullptr : nn::Watch::current();
  const auto tell = [&](std::string part) {
    if (watch) watch->pass(x);
    if (parts) parts->emplace_back(std::move(part), x);
  };
  tell("embed");
  Turn by;
  if (!positions.defined()) by = turn(first, N, o.dim / o.heads, o.rotary_base, x);
  at::Tensor below;  // the values of the layer below
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    LanguageBlockImpl& block = *blocks[i];
    const at::Tensor normed = block.norm1(x);
    nn::AttentionImpl::Result attended;
    if (block.rotary_) {
      attended = cache ? block.rotary_->step(normed, by, below, cache->rotary_[i], room)
                       : block.rotary_->forward(normed, by, below);
    } else {
      attended = cache ? block.attn->step(normed, cache->plain_[i], below)
                       : block.attn->forward(normed, below);
    }
    x = x + drop(attended.y);
    x = x + drop(block.mlp(block.norm2(x)));
    below = attended.v;
    tell(fmt::format("blocks.{}", i));
  }
  if (cache) cache->length_ += N;
  x = norm(x);
  tell("norm");
  return at::dropout(x, o.head_dropout, is_training());
}

LanguageImpl::Parts LanguageImpl::parts(const at::Tensor& tokens) {
  Parts all;
  run(tokens, nullptr, &all);
  return all;
}

at::Tensor LanguageImpl::states(const at::Tensor& tokens) { return run(tokens, nullptr); }

at::Tensor LanguageImpl::step(const at::Tensor& tokens, LanguageCache& cache) {
  if (at::GradMode::is_enabled() && embed->weight.requires_grad())
    throw InvalidArgument("a cache keeps no gradients: decode under torch::NoGradGuard");
  if (cache.length_ == 0) {
    cache.plain_.clear();
    cache.rotary_.clear();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      cache.plain_.emplace_back(std::min(cache.capacity_, options_.context));
      cache.rotary_.emplace_back();
    }
  }
  if (cache.plain_.size() != blocks.size())
    throw InvalidArgument(
        fmt::format("a cache of {} layers for a model of {}", cache.plain_.size(), blocks.size()));
  return run(tokens, &cache);
}

at::Tensor LanguageImpl::logits(const at::Tensor& states) {
  return at::linear(states, options_.tied ? embed->weight : head->weight);
}

}  // namespace foci::models
