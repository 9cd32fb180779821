// SPDX-License-Identifier: Apache-2.0
// Transformers whose layers have any metric and weighting. Vision transformers have timm's names
// and shapes, so that its checkpoints load.
#pragma once

#include <foci/export.h>
#include <foci/nn.hpp>
#include <foci/settings.hpp>

#include <torch/nn/modules/conv.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace foci::models {

/// What the layers of a model attend with. Layers outside [first, last) have the weighting and the
/// metric dot; so has the lowest one where the metric compares values with those below.
struct Mechanism {
  Settings words = {};     ///< as the command line has them; metric learned and scope running too
  std::int64_t first = 0;  ///< the layers with the metric, counted from 0
  std::int64_t last = -1;  ///< one past; -1: to the top
};

/// Layer `index` of `depth`; dim, heads and the like are the caller's to add.
FOCI_API nn::AttentionOptions attention_of(const Mechanism& mechanism, std::int64_t index,
                                           std::int64_t depth);

/// With probability p a sample's branch is left out in training, the others grow by 1/(1-p).
FOCI_API at::Tensor drop_path(const at::Tensor& branch, double p, bool training);

struct VitOptions {
  std::int64_t image = 224, patch = 16, channels = 3, classes = 1000;
  std::int64_t dim = 192, depth = 12, heads = 3;
  double mlp_ratio = 4;
  double drop_path = 0;  ///< of the last layer; it grows from 0 at the first
  Mechanism mechanism = {};
};

/// patch_embed.proj, cls_token, pos_embed, blocks.*, norm, head.
class FOCI_API VitImpl : public torch::nn::Module {
 public:
  explicit VitImpl(const VitOptions& options);
  /// images (B,C,S,S) to logits (B,classes).
  at::Tensor forward(const at::Tensor& images);
  /// The class token and the patches after the last norm, (B,1+P,dim).
  at::Tensor tokens(const at::Tensor& images);
  const VitOptions& options() const { return options_; }

  torch::nn::Conv2d proj = nullptr;
  at::Tensor cls_token, pos_embed;  ///< (1,1,dim), (1,1+P,dim)
  std::vector<nn::Block> blocks;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear head = nullptr;

 private:
  VitOptions options_;
};
TORCH_MODULE(Vit);

/// Weights of a plain model from a safetensors file, all or nothing: the parameters that every
/// mechanism has, by name. What a mechanism adds of its own keeps what it has, so a pretrained
/// plain checkpoint goes into a model of any metric. Throws InvalidArgument.
FOCI_API void load_plain(torch::nn::Module& module, const std::string& path);

/// A model that `foci models` lists.
struct Listed {
  std::string_view name, task, about;
  VitOptions vit;
};
FOCI_API const std::vector<Listed>& listed();
/// Throws InvalidArgument with the nearest name.
FOCI_API const Listed& find(std::string_view name);

/// Numbers that are trained, and multiply-adds of one sample forward, attention's included.
struct Size {
  std::int64_t parameters = 0;
  double multiply_adds = 0;
};
FOCI_API Size size_of(const VitOptions& options);

}  // namespace foci::models
