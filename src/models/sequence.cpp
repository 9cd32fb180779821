// SPDX-License-Identifier: Apache-2.0
// The encoder of sequences: tokens or steps with learned positions through blocks, the mean over
// those that are real or a class token, a class. Padding is masked out as keys and left out of the
// mean, and estimates of a metric do not see it.
#include "models/blocks.hpp"

#include <foci/error.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

#include <cmath>
#include <utility>

namespace foci::models {
namespace {

void check(const SequenceOptions& o) {
  if ((o.vocabulary > 0) == (o.channels > 0)) {
    throw InvalidArgument(fmt::format("a vocabulary of {} and {} channels; one of them must be 0",
                                      o.vocabulary, o.channels));
  }
  if (o.length < 1 || o.classes < 1 || o.depth < 1) {
    throw InvalidArgument(
        fmt::format("length {}, {} classes and {} layers; each must be at least 1", o.length,
                    o.classes, o.depth));
  }
  for (const auto& [name, p] : {std::pair("dropout", o.dropout), {"drop_path", o.drop_path}}) {
    if (!(p >= 0 && p < 1))
      throw InvalidArgument(fmt::format("{} is {:g}; it must lie in [0, 1)", name, p));
  }
}

/// Throws where a mechanism and a kind of pooling do not go together.
void check_layers(const SequenceOptions& o) {
  for (std::int64_t i = 0; i < o.depth; ++i) {
    const Options how = attention_of(o.mechanism, i, o.depth).how;
    if (how.causal && o.pooling == Pooling::cls) {
      throw InvalidArgument(
          "a class token stands first, and a causal layer shows it nothing else: pool the mean");
    }
  }
}

/// Scale auto is matched over all queries, and nothing says which of them are padding.
bool matches_scale(const SequenceOptions& o) {
  const auto scale = o.mechanism.words.find("scale");
  return scale != o.mechanism.words.end() && scale->second == "auto";
}

/// (B,N), true where a token is real.
at::Tensor real_tokens(const at::Tensor& lengths, const at::Tensor& x) {
  const std::int64_t batch = x.size(0), most = x.size(1);
  if (lengths.dim() != 1 || lengths.size(0) != batch || lengths.scalar_type() != at::kLong) {
    throw InvalidArgument(fmt::format("lengths have shape {}; they must be ({}) whole numbers",
                                      to_string(std::span(lengths.sizes())), batch));
  }
  const at::Tensor here = lengths.cpu();
  for (std::int64_t i = 0; i < batch; ++i) {
    const auto length = here.data_ptr<std::int64_t>()[i];
    if (length >= 1 && length <= most) continue;
    throw InvalidArgument(
        fmt::format("sample {} has length {}; it must be 1 to {}", i, length, most));
  }
  return (at::arange(most, at::kLong).unsqueeze(0) < here.unsqueeze(1)).to(x.device());
}

}  // namespace

SequenceImpl::SequenceImpl(const SequenceOptions& options) : options_(options) {
  check(options);
  check_layers(options);
  const std::int64_t dim = options.dim;
  const bool cls = options.pooling == Pooling::cls;
  blocks = add_blocks(*this,
                      {.dim = dim,
                       .depth = options.depth,
                       .heads = options.heads,
                       .head_dim = options.head_dim,
                       .mlp_ratio = options.mlp_ratio},
                      options.mechanism);
  pos_embed = register_parameter("pos_embed", at::zeros({1, options.length + cls, dim}));
  if (cls) cls_token = register_parameter("cls_token", at::zeros({1, 1, dim}));
  if (options.vocabulary > 0) {
    tokens = register_module("embed", torch::nn::Embedding(options.vocabulary, dim));
  } else {
    steps = register_module("embed", torch::nn::Linear(options.channels, dim));
  }
  norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim}).eps(1e-6)));
  head = register_module("head", torch::nn::Linear(dim, options.classes));
  const at::NoGradGuard without;
  start_like_timm(*this);
  pos_embed.normal_(0, 0.02);
  if (cls) cls_token.normal_(0, 0.02);
  if (options.vocabulary > 0) {
    tokens->weight.normal_(0, 0.02);
  } else {  // steps of size 1 become tokens of size 1
    steps->weight.normal_(0, 1 / std::sqrt(double(options.channels)));
  }
}

at::Tensor SequenceImpl::embedded(const at::Tensor& x) {
  const SequenceOptions& o = options_;
  const bool words = o.vocabulary > 0;
  const bool fits = words ? x.dim() == 2 && x.scalar_type() == at::kLong
                          : x.dim() == 3 && x.size(2) == o.channels;
  if (!fits || x.size(1) < 1 || x.size(1) > o.length) {
    const std::string rest = words ? ") of whole numbers" : fmt::format(", {})", o.channels);
    throw InvalidArgument(fmt::format("the input has shape {}; this model takes (batch, 1 to {}{}",
                                      to_string(std::span(x.sizes())), o.length, rest));
  }
  at::Tensor y = words ? tokens(x) : steps(x);
  if (cls_token.defined()) y = at::cat({cls_token.expand({x.size(0), -1, -1}), y}, 1);
  return at::dropout(y + pos_embed.slice(1, 0, y.size(1)), o.dropout, is_training());
}

at::Tensor SequenceImpl::forward(const at::Tensor& x, const at::Tensor& lengths) {
  at::Tensor y = embedded(x), real;
  if (lengths.defined()) {
    real = real_tokens(lengths, x);
    if (matches_scale(options_) && !real.all().item<bool>()) {
      throw InvalidArgument(
          "scale auto is matched over all tokens, padding too: give sequences of one length, or a "
          "number as scale");
    }
    if (cls_token.defined()) real = at::cat({at::ones({x.size(0), 1}, real.options()), real}, 1);
  }
  y = through(blocks, y,
              {.key_mask = real,
               .dropout = options_.dropout,
               .drop_path = options_.drop_path,
               .training = is_training()},
              norm);
  if (cls_token.defined()) return head(y.select(1, 0));
  if (!real.defined()) return head(y.mean(1));
  const at::Tensor sum = y.masked_fill(real.logical_not().unsqueeze(2), 0).sum(1);
  return head(sum / lengths.to(y.options()).unsqueeze(1));
}

}  // namespace foci::models
