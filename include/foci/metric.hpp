// SPDX-License-Identifier: Apache-2.0
// How near a query and a key are: the metrics, as a closed variant of small option structs.
// docs/<name>.md has the formula, picture, cost and gradient of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

namespace foci {

/// product: s = c sum_d m_d q_d k_d. distance: s = -1/2 c sum_d m_d (q_d - k_d)^2.
enum class Form { product, distance };
/// How a diagonal estimate is gathered over tokens.
enum class Reduce { mean, median };
/// What a diagonal estimate is divided by.
enum class Normalize { max, mean, none };
/// Which tokens an estimate may see; automatic = prefix when causal, else sequence.
enum class Scope { automatic, sequence, prefix };
/// What a caller's own metric is: m (.., D), or P (.., D, D).
enum class Extent { diagonal, full };

/// m = 1.
struct Dot {
  static constexpr std::string_view name = "dot";
  Form form = Form::product;
  bool operator==(const Dot&) const = default;
};

/// m_d = mean over tokens of |v_nd - v_prev_nd|, normalised.
struct LayerChange {
  static constexpr std::string_view name = "layer-change";
  Form form = Form::product;
  Reduce reduce = Reduce::mean;
  Normalize normalize = Normalize::max;
  Scope scope = Scope::automatic;
  bool operator==(const LayerChange&) const = default;
};

/// layer-change's normalised m replaced by its mean over d: its temperature without its shape.
struct Flat {
  static constexpr std::string_view name = "flat";
  Form form = Form::product;
  Reduce reduce = Reduce::mean;
  Normalize normalize = Normalize::max;
  Scope scope = Scope::automatic;
  bool operator==(const Flat&) const = default;
};

/// m_d = mean over queries of sum_e |d o_e / d q_d| of plain softmax attention, normalised.
struct Jacobian {
  static constexpr std::string_view name = "jacobian";
  Form form = Form::product;
  Normalize normalize = Normalize::max;
  Scope scope = Scope::automatic;
  bool operator==(const Jacobian&) const = default;
};

/// s = -1/2 c (q-k)' P (q-k), P the inverse of the keys' covariance with a ridge and a prior.
struct KeyCovariance {
  static constexpr std::string_view name = "key-covariance";
  double ridge = 1e-6;
  std::optional<double> prior = {};  ///< n0 pseudo-observations of the identity; 0, under prefix D
  std::int64_t period = 64;          ///< prefix: keys between two estimates
  Scope scope = Scope::automatic;
  bool operator==(const KeyCovariance&) const = default;
};

/// m_d uniform in [floor, 1], drawn once per (layer, G, D) from the seed: the control experiment.
struct Random {
  static constexpr std::string_view name = "random";
  Form form = Form::product;
  Normalize normalize = Normalize::max;
  double floor = 0.1;
  std::uint64_t seed = 0;
  std::int64_t layer = 0;
  bool operator==(const Random&) const = default;
};

/// The caller's: m >= 0 of shape (1|B, G|H, 1|N, D), or a symmetric P >= 0 of shape (1|B, G, D, D).
struct Given {
  static constexpr std::string_view name = "given";
  Form form = Form::product;
  Extent extent = Extent::diagonal;
  bool operator==(const Given&) const = default;
};

using Metric = std::variant<Dot, LayerChange, Flat, Jacobian, KeyCovariance, Random, Given>;

}  // namespace foci
