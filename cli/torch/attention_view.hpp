// SPDX-License-Identifier: Apache-2.0
// One sample's pass as plain numbers: rows of weights of any layer and head, what the same queries
// and keys would give under dot, rollout, and a head's query, keys and metric.
#pragma once

#include <foci/measure.hpp>
#include <foci/pictures.hpp>

#include <string>
#include <vector>

namespace foci::cli {

using Numbers = std::vector<double>;

/// Of a layer: the last one is for those above too.
measure::Grid grid_at(const std::vector<measure::Grid>& grids, std::int64_t layer);

class AttentionView {
 public:
  /// Runs the pass, which must be of one sample. Throws InvalidArgument where it attends nowhere.
  explicit AttentionView(const std::function<void()>& pass);

  std::int64_t layers() const { return std::int64_t(calls_.size()); }
  std::int64_t heads(std::int64_t layer) const { return calls_[std::size_t(layer)].q.size(1); }
  std::int64_t queries(std::int64_t layer) const { return calls_[std::size_t(layer)].q.size(2); }
  std::int64_t keys(std::int64_t layer) const { return calls_[std::size_t(layer)].k.size(2); }
  std::string metric(std::int64_t layer) const;

  /// |a| of one query over the keys; head -1: the mean over heads.
  Numbers row(std::int64_t layer, std::int64_t head, std::int64_t query) const;
  /// The same queries and keys under dot, the weighting as it is.
  Numbers plain_row(std::int64_t layer, std::int64_t head, std::int64_t query) const;
  /// |a| of the queries [first, first + count) over the keys of the same places.
  Numbers square(std::int64_t layer, std::int64_t head, std::int64_t first,
                 std::int64_t count) const;
  /// One query's rollout up to a layer, over the tokens of the lowest; empty where maps are not
  /// square, or larger than 1,024. Where a layer has other tokens than the one below, as a mask
  /// transformer over an encoder, those on the grid go on and the others begin.
  Numbers rollout_row(std::int64_t layer, std::int64_t query,
                      const std::vector<measure::Grid>& grids) const;
  /// The head as its metric sees it, and before it as dot would in the same plane. Keys that the
  /// query does not see are left out; none where it sees none.
  std::vector<report::Plane> planes(std::int64_t layer, std::int64_t head,
                                    std::int64_t query) const;

 private:
  at::Tensor rolled(std::int64_t first, std::int64_t last) const;
  Numbers row_of(const nn::Seen& call, std::int64_t head, std::int64_t query) const;
  std::vector<nn::Seen> calls_;
};

}  // namespace foci::cli
