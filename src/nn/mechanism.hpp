// SPDX-License-Identifier: Apache-2.0
// A layer's options, judged and given their defaults: what the operators get, and the text that is
// stored with the weights. The Python package writes the same text.
#pragma once

#include <foci/nn.hpp>

#include <string>

namespace foci::nn {

struct Mechanism {
  Mechanism(const AttentionOptions& options, std::int64_t head_dim);

  Options call;   ///< when the operators estimate the metric
  Options given;  ///< when the layer gives it to them
  std::string text;
  bool compares = false;  ///< with the values of the layer below
  bool full = false;
};

/// Whether two texts mean different things; the backend computes the same thing.
bool differ(const std::string& one, const std::string& other);

}  // namespace foci::nn
