// SPDX-License-Identifier: Apache-2.0
// A small model whose passes are measured.
#pragma once

#include <foci/measure.hpp>

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace measure_test {

using namespace foci;

/// A model of two layers, each of its own weights: tokens on a grid of 2 x 3 behind one more.
struct Stack {
  at::Tensor x = (torch::manual_seed(5), torch::randn({6, 7, 8}));
  at::Tensor keep;
  Options how = {};

  std::vector<nn::Seen> calls(std::int64_t first, std::int64_t count) const {
    std::vector<nn::Seen> seen;
    nn::Watch watch([&](const nn::Seen& call) { seen.push_back(call); });
    pass(first, count);
    return seen;
  }
  void pass(std::int64_t first, std::int64_t count) const {
    const torch::NoGradGuard without;
    at::Tensor y = x.slice(0, first, first + count);
    const at::Tensor mask = keep.defined() ? keep.slice(0, first, first + count) : at::Tensor();
    nn::Watch* watch = nn::Watch::current();
    if (watch) watch->pass(y, mask);
    for (int layer = 0; layer < 2; ++layer) {
      const at::Tensor heads = y.view({count, 7, 2, 4}).transpose(1, 2);
      const at::Tensor o = nn::attend(heads + layer, heads * 2, heads, {.key_mask = mask}, how);
      y = y + o.transpose(1, 2).reshape_as(y);
      if (watch) watch->pass(y, mask);
    }
  }
};

}  // namespace measure_test
