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

/// Whether layers of these texts compute different things; how they are trained and on which
/// backend they run is not compared.
bool differ(const std::string& one, const std::string& other);

}  // namespace foci::nn
