// SPDX-License-Identifier: Apache-2.0
// What the encoders share: a stack of blocks, the way through it, and where weights begin.
#pragma once

#include <foci/models.hpp>

namespace foci::models {

struct BlockSizes {
  std::int64_t dim, depth, heads;
  std::int64_t head_dim = 0;  // 0 = dim / heads
  double mlp_ratio = 4;
};

/// Registers blocks.0, blocks.1, ... with `owner`.
std::vector<nn::Block> add_blocks(torch::nn::Module& owner, const BlockSizes& sizes,
                                  const Mechanism& mechanism);

struct Passing {
  at::Tensor key_mask = {};  // (B,N), true = keep
  double dropout = 0;        // of what a branch adds
  double drop_path = 0;      // of the last layer
  bool training = false;
};

/// x (B,N,dim) through the blocks, each given the values of the one below, and normed at the end.
at::Tensor through(std::vector<nn::Block>& blocks, const at::Tensor& x, const Passing& how,
                   torch::nn::LayerNorm& norm);

/// timm's: 0.02 wide, biases 0. It cuts at 2, which is a hundred times as far out.
void start_like_timm(torch::nn::Module& module);

}  // namespace foci::models
