// SPDX-License-Identifier: Apache-2.0
// Segmenter with its mask transformer, windows over large images, and what is counted over pixels.
#include "models/blocks.hpp"

#include <foci/error.hpp>

#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::models {
namespace {

/// Rows of length 1.
at::Tensor unit(const at::Tensor& x) {
  constexpr double least = 1e-12;
  return x / x.norm(2, {-1}, /*keepdim=*/true).clamp_min(least);
}

/// Where windows of `window` pixels begin along an axis of `size`.
std::vector<std::int64_t> starts(std::int64_t size, std::int64_t window, std::int64_t stride) {
  std::vector<std::int64_t> places;
  for (std::int64_t at = 0; at + window < size; at += stride) places.push_back(at);
  places.push_back(std::max<std::int64_t>(size - window, 0));
  return places;
}

struct Place {
  std::int64_t y, x;
};

}  // namespace

SegmenterImpl::SegmenterImpl(const SegmenterOptions& options) : options_(options) {
  SegmenterOptions& o = options_;
  if (o.classes < 1 || o.decoder_depth < 1) {
    throw InvalidArgument(
        fmt::format("{} classes and {} layers of the decoder; each must be at "
                    "least 1",
                    o.classes, o.decoder_depth));
  }
  o.encoder.classes = 0;
  const std::int64_t dim = o.encoder.dim;
  encoder = register_module("encoder", Vit(o.encoder));
  auto decoder = std::make_shared<torch::nn::Module>();
  const auto normed = [&](const char* name, std::int64_t size, double eps) {
    return decoder->register_module(
        name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({size}).eps(eps)));
  };
  proj_dec = decoder->register_module("proj_dec", torch::nn::Linear(dim, dim));
  blocks = add_blocks(*decoder, {.dim = dim, .depth = o.decoder_depth, .heads = o.decoder_heads},
                      o.decoder);
  decoder_norm = normed("decoder_norm", dim, 1e-5);
  mask_norm = normed("mask_norm", o.classes, 1e-5);
  const double scale = 1 / std::sqrt(double(dim));
  cls_emb = decoder->register_parameter("cls_emb", 0.02 * at::randn({1, o.classes, dim}));
  proj_patch = decoder->register_parameter("proj_patch", scale * at::randn({dim, dim}));
  proj_classes = decoder->register_parameter("proj_classes", scale * at::randn({dim, dim}));
  const at::NoGradGuard without;
  start_like_timm(*decoder);
  register_module("decoder", decoder);
}

at::Tensor SegmenterImpl::masks(const at::Tensor& images) {
  const std::int64_t side = options_.encoder.image / options_.encoder.patch;
  const at::Tensor patches = encoder->tokens(images).slice(1, 1);  // (B,P,dim), no class token
  const std::int64_t B = patches.size(0), P = patches.size(1);
  at::Tensor x = at::cat({proj_dec(patches), cls_emb.expand({B, -1, -1})}, 1);
  x = through(blocks, x, {.training = is_training()}, decoder_norm);
  const at::Tensor places = unit(x.slice(1, 0, P).matmul(proj_patch));
  const at::Tensor classes = unit(x.slice(1, P).matmul(proj_classes));
  const at::Tensor likeness = places.matmul(classes.transpose(1, 2));  // bf16 under autocast
  const at::Tensor masks =
      mask_norm(likeness.to(mask_norm->weight.scalar_type()));  // (B,P,classes)
  return masks.transpose(1, 2).reshape({B, options_.classes, side, side});
}

at::Tensor SegmenterImpl::forward(const at::Tensor& images) {
  const std::int64_t size = options_.encoder.image;
  return at::upsample_bilinear2d(masks(images), {size, size}, /*align_corners=*/false);
}

at::Tensor sliding_logits(Segmenter& model, const at::Tensor& image, std::int64_t stride,
                          std::int64_t batch) {
  const std::int64_t window = model->options().encoder.image;
  if (image.dim() != 3 || image.size(0) != model->options().encoder.channels) {
    throw InvalidArgument(fmt::format("an image has shape {}; it must be ({}, height, width)",
                                      to_string(std::span(image.sizes())),
                                      model->options().encoder.channels));
  }
  if (stride < 1 || stride > window || batch < 1) {
    throw InvalidArgument(
        fmt::format("stride {} and batch {}; windows of {} need a stride of 1 to "
                    "{} and a batch of 1 or more",
                    stride, batch, window, window));
  }
  const at::NoGradGuard without;
  const std::int64_t height = image.size(1), width = image.size(2);
  const std::int64_t H = std::max(height, window), W = std::max(width, window);
  const at::Tensor filled = at::constant_pad_nd(image, {0, W - width, 0, H - height});
  at::Tensor sum = at::zeros({model->options().classes, H, W}, image.options());
  at::Tensor count = at::zeros({H, W}, image.options());
  std::vector<Place> places;
  for (const std::int64_t y : starts(H, window, stride)) {
    for (const std::int64_t x : starts(W, window, stride)) places.push_back({y, x});
  }
  const auto cut = [&](const at::Tensor& from, const Place& p) {  // the last two axes
    return from.slice(-2, p.y, p.y + window).slice(-1, p.x, p.x + window);
  };
  for (std::size_t first = 0; first < places.size(); first += std::size_t(batch)) {
    const std::size_t last = std::min(places.size(), first + std::size_t(batch));
    std::vector<at::Tensor> windows;
    for (std::size_t i = first; i < last; ++i) windows.push_back(cut(filled, places[i]));
    const at::Tensor logits = model->forward(at::stack(windows));
    for (std::size_t i = first; i < last; ++i) {
      cut(sum, places[i]).add_(logits[std::int64_t(i - first)]);
      cut(count, places[i]).add_(1);
    }
  }
  return sum.div_(count).slice(1, 0, height).slice(2, 0, width);
}

Confusion::Confusion(std::int64_t classes) {
  if (classes < 1 || classes > ignored) {
    throw InvalidArgument(fmt::format("{} classes; there may be 1 to {}", classes, ignored));
  }
  counts_ = at::zeros({classes, classes}, at::kLong);
}

void Confusion::add(const at::Tensor& labels, const at::Tensor& guesses) {
  const std::int64_t classes = counts_.size(0);
  if (labels.sizes() != guesses.sizes()) {
    throw InvalidArgument(fmt::format("labels have shape {} and guesses {}; they must be the same",
                                      to_string(std::span(labels.sizes())),
                                      to_string(std::span(guesses.sizes()))));
  }
  const at::Tensor truth = labels.flatten().to(at::kCPU, at::kLong);
  const at::Tensor counted = truth.ne(ignored);
  const at::Tensor rows = truth.masked_select(counted);
  const at::Tensor columns = guesses.flatten().to(at::kCPU, at::kLong).masked_select(counted);
  if (rows.numel() == 0) return;
  for (const auto& [name, values] : {std::pair("label", rows), {"guess", columns}}) {
    const auto least = values.min().item<std::int64_t>(), most = values.max().item<std::int64_t>();
    if (least >= 0 && most < classes) continue;
    throw InvalidArgument(
        fmt::format("a {} is {}; there are {} classes", name, least < 0 ? least : most, classes));
  }
  counts_ += at::bincount(rows * classes + columns, {}, classes * classes).view_as(counts_);
}

double Confusion::pixel_accuracy() const {
  return counts_.trace().item<double>() / double(counts_.sum().item<std::int64_t>());
}

double Confusion::mean_accuracy() const {
  const at::Tensor right = counts_.diagonal().to(at::kDouble);
  return (right / counts_.sum(1)).nanmean().item<double>();
}

at::Tensor Confusion::iou() const {
  const at::Tensor right = counts_.diagonal().to(at::kDouble);
  return right / (counts_.sum(1) + counts_.sum(0) - counts_.diagonal());
}

double Confusion::mean_iou() const { return iou().nanmean().item<double>(); }

}  // namespace foci::models
