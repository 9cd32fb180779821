// SPDX-License-Identifier: Apache-2.0
// The layer: projects tokens, attends, projects back; decoding through foci::Decoder. What its
// metric remembers is in metric_state.cpp.
#include "nn/attention.hpp"

#include "nn/fused.hpp"
#include "nn/views.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/serialize/input-archive.h>

#include <fmt/core.h>

namespace foci::nn {
namespace {

/// (B,H,N,D) to (B,N,H D), where N or B may be 0.
at::Tensor joined(const at::Tensor& o) {
  return o.transpose(1, 2).reshape({o.size(0), o.size(2), o.size(1) * o.size(3)});
}

}  // namespace

AttentionImpl::AttentionImpl(const AttentionOptions& options) : options_(options) {
  AttentionOptions& o = options_;
  if (o.dim < 1 || o.heads < 1) {
    throw InvalidArgument(
        fmt::format("a layer of dim {} and {} heads; both must be at least 1", o.dim, o.heads));
  }
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.kv_heads < 1 || o.heads % o.kv_heads != 0) {
    throw InvalidArgument(
        fmt::format("{} heads is no multiple of kv_heads {}", o.heads, o.kv_heads));
  }
  if (o.head_dim == 0) {
    if (o.dim % o.heads != 0) {
      throw InvalidArgument(fmt::format(
          "dim {} is no multiple of {} heads: take one that is, or set head_dim", o.dim, o.heads));
    }
    o.head_dim = o.dim / o.heads;
  }
  how_ = std::make_unique<Mechanism>(o, o.head_dim);
  const std::int64_t rows = (o.heads + 2 * o.kv_heads) * o.head_dim;
  qkv = register_module("qkv",
                        torch::nn::Linear(torch::nn::LinearOptions(o.dim, rows).bias(o.qkv_bias)));
  proj = register_module(
      "proj",
      torch::nn::Linear(torch::nn::LinearOptions(o.heads * o.head_dim, o.dim).bias(o.proj_bias)));
  register_buffer("mechanism", encoded(how_->text));
  remember();
}

AttentionImpl::~AttentionImpl() = default;

const std::string& AttentionImpl::mechanism() const { return how_->text; }

AttentionImpl::Projected AttentionImpl::project(const at::Tensor& x, const at::Tensor& v_prev,
                                                const at::Tensor& key_mask) {
  const AttentionOptions& o = options_;
  if (!x.defined() || x.dim() != 3 || x.size(2) != o.dim) {
    throw InvalidArgument(fmt::format("x has shape {}; it must be (batch, tokens, {})",
                                      x.defined() ? to_string(std::span(x.sizes())) : "()", o.dim));
  }
  if (o.lowest && v_prev.defined()) {
    throw InvalidArgument("v_prev came, but this is the lowest layer: it has none below");
  }
  if (how_->compares && !v_prev.defined() && (!options_.running || is_training())) {
    throw InvalidArgument(
        "the metric compares values with those of the layer below: v_prev is missing (on the "
        "lowest layer set lowest, which makes it dot)");
  }
  const std::int64_t q_size = o.heads * o.head_dim, k_size = o.kv_heads * o.head_dim;
  // Split at once: going back its parts are joined, where slices would each be filled up and added.
  const at::Tensor rows = linear(*qkv, x);
  const auto parts = rows.split_with_sizes({q_size, k_size, k_size}, 2);
  const auto heads = [&](const at::Tensor& part) {
    return part.view({x.size(0), x.size(1), -1, o.head_dim}).transpose(1, 2);
  };
  return {rows, heads(parts[0]), heads(parts[1]), heads(parts[2]), v_prev, key_mask};
}

AttentionImpl::Result AttentionImpl::forward(const at::Tensor& x, const at::Tensor& v_prev,
                                             const at::Tensor& key_mask,
                                             const at::Tensor& key_bias) {
  const Projected p = project(x, v_prev, key_mask);
  if (is_training()) start(p);
  const at::Tensor metric = given_metric();
  if (is_training()) observe(p);
  const bool given = metric.defined();
  at::Tensor below;
  if (!given && how_->compares) {  // without a gradient nothing is made, or added, for it
    below = how_->call.metric_grad == MetricGrad::through ? v_prev : v_prev.detach();
  }
  const Rows rows{p.rows, below, key_mask, options_.heads, options_.kv_heads, options_.head_dim};
  if (!given && !key_bias.defined() && attends_rows(rows, how_->call)) {
    const AttendedRows done = attend_rows(rows, how_->call);
    return {linear(*proj, done.o), done.v};
  }
  const at::Tensor o = attend(p.q, p.k, p.v,
                              {.v_prev = below,
                               .key_mask = key_mask,
                               .key_bias = key_bias,
                               .metric = given ? metric.to(wide_type(p.q)) : metric},
                              given ? how_->given : how_->call);
  return {linear(*proj, joined(o)), p.v};
}

AttentionImpl::Result AttentionImpl::step(const at::Tensor& x, Cache& cache,
                                          const at::Tensor& v_prev, const at::Tensor& key_mask) {
  if (!options_.how.causal) throw InvalidArgument("a cache needs a causal layer: set causal");
  if (at::GradMode::is_enabled() && (x.requires_grad() || qkv->weight.requires_grad())) {
    throw InvalidArgument("a cache keeps no gradients: decode under torch::NoGradGuard");
  }
  const Projected p = project(x, v_prev, key_mask);
  const at::Tensor metric = given_metric();
  const bool given = metric.defined();
  Inputs tokens{.q = view_of("q", p.q), .k = view_of("k", p.k), .v = view_of("v", p.v)};
  if (!given && how_->compares) tokens.v_prev = view_of("v_prev", v_prev);
  tokens.key_mask = view_of("key_mask", key_mask);
  const at::Tensor wide = given ? metric.to(wide_type(p.q)) : metric;
  tokens.metric = view_of("metric", wide);
  if (!cache.decoder_) {
    Options how = given ? how_->given : how_->call;
    if (x.is_cuda()) how.backend = Backend::cuda;
    cache.decoder_ = std::make_unique<Decoder>(DecoderSizes{.B = x.size(0),
                                                            .H = options_.heads,
                                                            .G = options_.kv_heads,
                                                            .D = options_.head_dim,
                                                            .E = options_.head_dim,
                                                            .capacity = cache.capacity_,
                                                            .dtype = tokens.q.dtype},
                                               how);
  }
  const at::Tensor o =
      at::empty({x.size(0), options_.heads, x.size(1), options_.head_dim}, p.q.options());
  cache.decoder_->step({.o = view_of("o", o)}, tokens);
  return {proj(joined(o)), p.v};
}

void AttentionImpl::check_mechanism(const std::string& name, const at::Tensor& stored) const {
  const std::string text = decoded(stored);
  if (!differ(text, how_->text)) return;
  throw InvalidArgument(
      fmt::format("{}: the checkpoint was made under `{}` and this layer has `{}`: build the layer "
                  "with the checkpoint's settings",
                  name, text, how_->text));
}

void AttentionImpl::load(torch::serialize::InputArchive& archive) {
  at::Tensor stored;
  if (archive.try_read("mechanism", stored, /*is_buffer=*/true)) {
    check_mechanism("mechanism", stored);
  }
  torch::nn::Module::load(archive);
  loaded();
}

Cache::Cache(std::int64_t capacity) : capacity_(capacity) {
  if (capacity < 1) {
    throw InvalidArgument(fmt::format("a cache of {} tokens; it must hold at least 1", capacity));
  }
}
Cache::~Cache() = default;
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;
std::int64_t Cache::length() const { return decoder_ ? decoder_->length() : 0; }
void Cache::reset() { decoder_.reset(); }

}  // namespace foci::nn
