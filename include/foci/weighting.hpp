// SPDX-License-Identifier: Apache-2.0
// How scores become weights: the weightings, as a closed variant of small option structs.
// docs/<name>.md has the formula, picture, cost and gradient of each.
#pragma once

#include <string_view>
#include <variant>

namespace foci {

/// What relu2 and identity rows are divided by: visible keys, sum |x|, root of sum x^2, nothing.
enum class Rescale { length, l1, l2, none };
/// phi of linear attention: elu(x) + 1, max(x, 0), exp(x).
enum class Feature { elu1, relu, exp };

/// a = exp(s) / sum
struct Softmax {
  static constexpr std::string_view name = "softmax";
  bool operator==(const Softmax&) const = default;
};

/// a = relu(s)^2, rescaled
struct Relu2 {
  static constexpr std::string_view name = "relu2";
  Rescale rescale = Rescale::length;
  bool operator==(const Relu2&) const = default;
};

/// a = s, rescaled
struct Identity {
  static constexpr std::string_view name = "identity";
  Rescale rescale = Rescale::length;
  bool operator==(const Identity&) const = default;
};

/// a = phi(q').phi(k) / sum
struct Linear {
  static constexpr std::string_view name = "linear";
  Feature feature = Feature::elu1;
  bool operator==(const Linear&) const = default;
};

/// a = rate^(t-j) / sum over visible keys, with content then times s. Causal only.
struct Decay {
  static constexpr std::string_view name = "decay";
  double rate = 0.9;
  bool content = false;
  bool operator==(const Decay&) const = default;
};

using Weighting = std::variant<Softmax, Relu2, Identity, Linear, Decay>;

}  // namespace foci
