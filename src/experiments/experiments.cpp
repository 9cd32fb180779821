// SPDX-License-Identifier: Apache-2.0
// What sizes mean something, and which would take more than seconds.
#include "experiments/experiments.hpp"

#include "theory/checks.hpp"

#include <cmath>
#include <string>

namespace foci::experiments {
namespace {

constexpr std::int64_t most_runs = 10'000, most_layers = 1000;

/// Smallest and largest dim and most keys. What is the same in one dimension says nothing; the
/// search moves every number of its problem, Weights looks at few queries, the others at every pair
/// of tokens.
struct Limits {
  std::int64_t least_dim = 1, most_dim = 64, most_keys = 2048;
};
template <class Of>
constexpr Limits limits = {};
template <>
constexpr Limits limits<PerturbedQuery> = {1, 8, 16};
template <>
constexpr Limits limits<Recovery> = {2, 64, 2048};
template <>
constexpr Limits limits<Weights> = {1, 64, 16'384};
template <>
constexpr Limits limits<Collapse> = {2, 64, 512};

void within(std::int64_t least, std::int64_t value, std::int64_t most, const char* name) {
  if (value >= least && value <= most) return;
  throw InvalidArgument(std::string(name) + " is " + std::to_string(value) + "; it must be " +
                        std::to_string(least) + " to " + std::to_string(most));
}

template <class Of>
void check(const Of& of) {
  within(limits<Of>.least_dim, of.dim, limits<Of>.most_dim, "dim");
  if constexpr (requires { of.keys; }) within(2, of.keys, limits<Of>.most_keys, "keys");
  within(2, of.runs, most_runs, "runs");
  if constexpr (requires { of.layers; }) within(1, of.layers, most_layers, "layers");
  if constexpr (requires { of.noise; })
    theory::want(std::isfinite(of.noise) && of.noise >= 0, "noise", of.noise, "0 or above");
}

}  // namespace

Result run(const Experiment& experiment, std::uint64_t seed, Executor* threads) {
  return std::visit(
      [&](const auto& of) {
        check(of);
        return run(of, Setting{seed, threads});
      },
      experiment);
}

}  // namespace foci::experiments
