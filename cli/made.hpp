// SPDX-License-Identifier: Apache-2.0
// Tensors made from a seed, the same on every machine, with the structure that metrics look for:
// keys stretched along coordinates, values that change between layers more in some coordinates than
// in others.
#pragma once

#include "cli/problem.hpp"

#include <cstdint>
#include <string_view>

namespace foci::cli {

/// What is made, in one line for the reader.
inline constexpr std::string_view made_means =
    "made tensors: normal q and v_prev; keys stretched from 0.3 to 2 along the coordinates; values "
    "that "
    "move from the layer below by 0.1 to 1.5";

/// q k v v_prev do, and `metric` for given, in f64. Throws InvalidArgument when they would not fit
/// in memory.
Problem made_problem(const Sizes& sizes, const Options& how, std::uint64_t seed);

/// A gradient of o for a problem that came without one, in f64.
Tensor made_gradient(const Sizes& sizes, std::uint64_t seed);

/// A bias per key and query head, (B,H,M) in f64.
Tensor made_key_bias(const Sizes& sizes, std::uint64_t seed);

/// Independent N(0,1) numbers; the same seed gives the same numbers everywhere.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : state_(seed) {}
  double operator()();
  double uniform();  ///< in (0, 1)

 private:
  std::uint64_t state_;
};

}  // namespace foci::cli
