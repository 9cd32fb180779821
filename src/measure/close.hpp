// SPDX-License-Identifier: Apache-2.0
// What a few samples are looked at closely for: everything that needs the weights themselves.
#pragma once

#include "measure/weights.hpp"

#include <foci/measure.hpp>

#include <vector>

namespace foci::measure {

struct Look {
  Grid grid;
  std::int64_t top = 10;
  at::Tensor counts;        ///< (B,H,N): rows that count
  std::int64_t looked = 0;  ///< rows whose weights are formed, spread evenly
  bool rolls = false;       ///< follow the rollout, which needs every row
};

/// A number of rows that were looked at, and which of them have it, (B,H,N).
struct OfRows {
  at::Tensor rows, counts;
  at::Tensor means() const;  ///< (B,H), NaN where none has it
};

struct Closely {
  std::int64_t looked = 0;  ///< at so many rows
  OfRows distance, top;
  std::vector<double> head_distance,
      rollout_keys;  ///< a sample; empty where they were not measured
};

/// Goes through the rows in blocks; where not all are looked at, distances of heads are estimated
/// from those that are. `product` (B,N,N) is the rollout of the layers below, undefined
/// at the lowest, and becomes that of this one.
Closely look_closely(const nn::Seen& call, const Look& how, at::Tensor& product);

/// mean |k - below| by mean |below| of each sample, over the tokens that the mask keeps.
std::vector<double> key_change(const at::Tensor& below, const at::Tensor& k,
                               const at::Tensor& mask);

}  // namespace foci::measure
