// SPDX-License-Identifier: Apache-2.0
// What a task does with its part where several processes train: sums of judgements, signs of life.
// One process is a group of one, without any of it; it alone can be told to stop while it judges.
#pragma once

#include <foci/dist.hpp>
#include <foci/error.hpp>
#include <foci/run.hpp>

#include <fmt/core.h>

#include <vector>

namespace foci::train {

inline Share share_of(const RunOptions& run) { return run.group ? run.group->share() : Share{}; }

inline bool is_first(const RunOptions& run) { return share_of(run).rank == 0; }

inline void alive(const RunOptions& run) {
  if (run.group != nullptr) run.group->alive();
}

inline bool is_told_to_stop(const RunOptions& run) {
  return run.group == nullptr && run.stops && run.stops();
}

/// Ends an evaluation that the run is told to leave.
struct ToldToStop {};

/// Between the pieces of an evaluation.
inline void go_on_judging(const RunOptions& run) {
  if (is_told_to_stop(run)) throw ToldToStop();
  alive(run);
}

inline std::vector<double> summed(const RunOptions& run, std::vector<double> own) {
  return run.group ? run.group->sum(own) : own;
}

/// The part of a mean over `count` that a mean over this rank's has.
inline at::Tensor part_of_mean(const RunOptions& run, const at::Tensor& mean, std::int64_t count) {
  if (run.group == nullptr || run.group->size() == 1) return mean;
  return mean * (double(share_of(run).of(count).count()) / double(count));
}

/// Every rank needs a sample of every batch.
inline void check_batch(const RunOptions& run, std::int64_t batch) {
  if (batch >= share_of(run).size) return;
  throw InvalidArgument(fmt::format("a batch of {} for {} processes; each needs one at least",
                                    batch, share_of(run).size));
}

}  // namespace foci::train
