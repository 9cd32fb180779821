// SPDX-License-Identifier: Apache-2.0
// What every task begins with: where it is worked on, and how many steps an epoch has.
#pragma once

#include "train/not_finite.hpp"
#include "train/ranks.hpp"

#include <foci/error.hpp>
#include <foci/run.hpp>

#include <ATen/Context.h>

#include <fmt/core.h>

#include <string>

namespace foci::train {

inline at::Device device_of(const Place& place) {
  use_threads(place.threads);
  if (place.device == "cuda" && !at::hasCUDA())
    throw Unsupported("device cuda is not in this torch; the nearest is cpu");
  return at::Device(place.device == "cuda" ? at::kCUDA : at::kCPU);
}

/// What a run goes through: `size` samples, `batch` of them at once.
struct Rounds {
  std::int64_t size = 0, batch = 1, epochs = 1;
  const char* samples = "images";  ///< what they are called
};

/// Steps, and how often to save and judge, where the epoch says so.
inline RunOptions completed(RunOptions run, const Rounds& rounds) {
  const std::int64_t a_step = rounds.batch * run.accumulate;
  if (a_step < 1 || rounds.size < a_step) {
    throw InvalidArgument(fmt::format("{} {} make no step of {}; a smaller batch does", rounds.size,
                                      rounds.samples, a_step));
  }
  check_batch(run, rounds.batch);
  const std::int64_t epoch = rounds.size / a_step;
  if (run.schedule.steps == 0) run.schedule.steps = rounds.epochs * epoch;
  if (run.schedule.warmup > run.schedule.steps) {
    throw InvalidArgument(fmt::format("--warmup {}: the run has {} steps; it must be at most those",
                                      run.schedule.warmup, run.schedule.steps));
  }
  if (run.save_every == 0) run.save_every = epoch;
  if (run.evaluate_every == 0) run.evaluate_every = epoch;
  return run;
}

/// Takes a number that was given in place of a model's own.
template <class Number>
void change(Number& to, Number by) {
  if (by != 0) to = by;
}

}  // namespace foci::train
