// SPDX-License-Identifier: Apache-2.0
// Claims about attention and its metrics, tried out on made data. Seeded; what is drawn is drawn
// anew in every run, and each number is a mean over runs with its standard error. Attention and
// metrics are the library's own, by ref in f64: a seed gives the same numbers everywhere.
#pragma once

#include <foci/export.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace foci {
class Executor;
}

namespace foci::experiments {

/// A mean over runs, and its standard error: 0 where nothing was drawn.
struct Estimate {
  double value = 0, standard_error = 0;
};

/// measured: by calling attention. closed: from a formula. extreme: the largest that was found.
enum class Kind { measured, closed, extreme };
struct Series {
  std::string name;
  Kind kind = Kind::measured;
  std::vector<double> x = {};
  std::vector<Estimate> y = {};
};

enum class Spacing { linear, logarithmic };
struct Axis {
  std::string name;
  Spacing spacing = Spacing::linear;
};
struct Chart {
  std::string title;
  Axis x, y;
  std::vector<Series> series = {};
};

/// What is worth quoting: a row for each thing compared, a column for each measure.
struct Row {
  std::string name;
  std::vector<Estimate> values;
};
struct Table {
  std::string compared;  ///< heading of the names
  std::vector<std::string> columns = {};
  std::vector<Row> rows = {};
};

struct Result {
  std::vector<Chart> charts;
  Table table;
};

/// Nadaraya-Watson regression, which attention is, of a function that varies in two coordinates.
struct Ellipse {
  static constexpr std::string_view name = "ellipse";
  static constexpr std::string_view asks =
      "Does an elliptical neighbourhood estimate a function better than a sphere, when the "
      "function varies in two coordinates alone?";
  std::int64_t dim = 8, keys = 200, runs = 16;
  double noise = 0.2;  ///< standard deviation of what is added to the values
};

/// Theorem (docs/theory.md): |o(q + d) - o(q)| <= tanh(R/4) times the largest distance between two
/// values, R how far the scores of two keys drift apart.
struct PerturbedQuery {
  static constexpr std::string_view name = "perturbed-query";
  static constexpr std::string_view asks =
      "How far can the output move when the query does, and does a search find a violation of the "
      "bound?";
  std::int64_t dim = 3, keys = 5, runs = 60;
};

/// The variability of a known function, coordinate by coordinate, estimated from tokens.
struct Recovery {
  static constexpr std::string_view name = "recovery";
  static constexpr std::string_view asks =
      "How well do layer-change and jacobian recover how much a function varies with each "
      "coordinate, when that is known?";
  std::int64_t dim = 8, keys = 128, runs = 16;
  double noise = 0.1;  ///< standard deviation of what is added to the values of both layers
};

/// Weights over keys whose coordinates are correlated, against the closed forms.
struct Weights {
  static constexpr std::string_view name = "weights";
  static constexpr std::string_view asks =
      "How do the weights over correlated keys spread, under dot, a diagonal and a full metric, "
      "and what do the closed forms say?";
  std::int64_t dim = 16, keys = 512, runs = 8;
};

/// The inverse covariance of correlated keys against the true one.
struct Covariance {
  static constexpr std::string_view name = "covariance";
  static constexpr std::string_view asks =
      "From how many keys on is key-covariance's metric near the true one, and what do ridge, "
      "prior, period and the start of a running average do?";
  std::int64_t dim = 16, runs = 12;
};

/// One block of attention applied again and again.
struct Collapse {
  static constexpr std::string_view name = "collapse";
  static constexpr std::string_view asks =
      "Do tokens become alike as attention is applied again and again, and does that follow from "
      "how spread its weights are or from the metric?";
  std::int64_t dim = 16, keys = 64, runs = 8, layers = 12;
};

using Experiment = std::variant<Ellipse, PerturbedQuery, Recovery, Weights, Covariance, Collapse>;

/// Runs share `threads` (nullptr = the calling thread alone); the numbers do not depend on them.
/// Throws InvalidArgument when a size means nothing or is more than an experiment of seconds holds.
FOCI_API Result run(const Experiment& experiment, std::uint64_t seed = 0,
                    Executor* threads = nullptr);

}  // namespace foci::experiments
