// SPDX-License-Identifier: Apache-2.0
// Checkpoints of plain models: the weights that every mechanism has. Positions of a vision
// transformer for images of another size are resampled.
#include <foci/models.hpp>

#include "nn/views.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace foci::models {
namespace {

/// The mechanism that a run of foci had, in words: no weight.
bool is_note(const std::string& name) { return name.ends_with(".attn.mechanism"); }

bool is_head(const std::string& name) { return name.starts_with("head."); }

bool is_headless(const Safetensors& file) {
  const auto names = file.names();
  return std::none_of(names.begin(), names.end(), is_head);
}

constexpr auto drop_it = "; for other classes leave it out: foci convert --drop head.";

at::Tensor as_tensor(const View& view) {
  return at::from_blob(view.data, at::IntArrayRef(view.shape.data(), std::size_t(view.rank)),
                       at::TensorOptions().dtype(nn::scalar_type(view.dtype)));
}

/// The side of a square of so many patches; 0 where they make none.
std::int64_t side_of(std::int64_t patches) {
  const auto side = std::int64_t(std::lround(std::sqrt(double(patches))));
  return side * side == patches ? side : 0;
}

/// Positions (1,1+P,dim) of a vision transformer, for another P.
bool are_of_another_grid(const torch::nn::Module& module, const std::string& name,
                         const View& found, at::IntArrayRef sizes) {
  return name == "pos_embed" && module.as<VitImpl>() != nullptr && found.rank == 3 &&
         is_floating(found.dtype) && found.shape[0] == 1 && found.shape[1] > 1 &&
         found.shape[1] != sizes[1] && found.shape[2] == sizes[2];
}

/// timm's resample_abs_pos_embed: the class token's stays, the grid of the others is resampled
/// bicubically in f32, with antialiasing.
at::Tensor resampled(const at::Tensor& from, std::int64_t side) {
  const at::Tensor whole = from.to(at::kFloat);
  const std::int64_t dim = whole.size(2), before = side_of(whole.size(1) - 1);
  const at::Tensor grid = whole.slice(1, 1).reshape({1, before, before, dim}).permute({0, 3, 1, 2});
  const at::Tensor made = at::_upsample_bicubic2d_aa(grid.contiguous(), {side, side}, false);
  return at::cat({whole.slice(1, 0, 1), made.permute({0, 2, 3, 1}).reshape({1, -1, dim})}, 1);
}

void check_square(const std::string& path, const View& found, at::IntArrayRef needed) {
  const std::int64_t patches = found.shape[1] - 1;
  if (side_of(patches) > 0) return;
  throw InvalidArgument(fmt::format(
      "{}: pos_embed has shape {}: {} patches and a class token are no square grid that "
      "could be resampled; this model needs {}",
      path, to_string(found.sizes()), patches, to_string(std::span(needed))));
}

}  // namespace

/// Those of a mechanism are named after the metric.
std::map<std::string, at::Tensor> plain_weights(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) {
    if (item.key().find(".metric_") == std::string::npos) tensors[item.key()] = item.value();
  }
  return tensors;
}

void load_plain(torch::nn::Module& module, const std::string& path) {
  const Safetensors file(path);
  auto mine = plain_weights(module);
  if (is_headless(file)) std::erase_if(mine, [](const auto& item) { return is_head(item.first); });
  for (const auto& [name, tensor] : mine) {
    if (!file.contains(name))
      throw InvalidArgument(fmt::format("{} has no tensor {}, which this model needs", path, name));
    const View found = file.find(name);
    const auto sizes = tensor.sizes();
    if (are_of_another_grid(module, name, found, sizes)) {
      check_square(path, found, sizes);
      continue;
    }
    if (Shape(found.sizes().begin(), found.sizes().end()) != sizes.vec()) {
      throw InvalidArgument(fmt::format(
          "{}: {} has shape {}; this model needs {}{}", path, name, to_string(found.sizes()),
          to_string({sizes.data(), sizes.size()}), is_head(name) ? drop_it : ""));
    }
  }
  for (const std::string& name : file.names()) {
    if (!mine.contains(name) && !is_note(name)) {
      throw InvalidArgument(
          fmt::format("{} holds {}, which a plain model of this kind does not have", path, name));
    }
  }
  const at::NoGradGuard without;
  for (const auto& [name, tensor] : mine) {
    const View found = file.find(name);
    at::Tensor from = as_tensor(found);
    if (are_of_another_grid(module, name, found, tensor.sizes())) {
      const std::int64_t before = side_of(from.size(1) - 1), side = side_of(tensor.size(1) - 1);
      from = resampled(from, side);
      warn(fmt::format("{}: pos_embed is for {} x {} patches; resampled to {} x {}", path, before,
                       before, side, side));
    }
    at::Tensor(tensor).copy_(from);
  }
}

}  // namespace foci::models
