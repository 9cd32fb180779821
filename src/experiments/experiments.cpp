// SPDX-License-Identifier: Apache-2.0
// What sizes mean something, and which would take more than seconds.
#include "experiments/experiments.hpp"

#include "theory/checks.hpp"

#include <cmath>
#include <string>

namespace foci::experiments {
namespace {

constexpr std::int64_t most_dim = 64, most_runs = 10'000, most_layers = 1000;

/// Weights looks at few queries; the others at every pair of tokens, or once a scale at each key.
template <class Of>
constexpr std::int64_t most_keys = std::is_same_v<Of, Weights>          ? 65'536
                                   : std::is_same_v<Of, PerturbedQuery> ? 64
                                                                        : 4096;

void within(std::int64_t least, std::int64_t value, std::int64_t most, const char* name) {
  if (value >= least && value <= most) return;
  throw InvalidArgument(std::string(name) + " is " + std::to_string(value) + "; it must be " +
                        std::to_string(least) + " to " + std::to_string(most));
}

template <class Of>
void check(const Of& of) {
  within(std::is_same_v<Of, Recovery> ? 2 : 1, of.dim, most_dim, "dim");
  if constexpr (requires { of.keys; }) within(2, of.keys, most_keys<Of>, "keys");
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
