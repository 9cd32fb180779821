// SPDX-License-Identifier: Apache-2.0
// The curves of foci theory: S over gamma, one for each beta, or under the keys' covariance over
// the temperature, one for each distance of the query. As numbers and as a picture.
#pragma once

#include "cli/mechanism.hpp"

#include <foci/pictures.hpp>

#include <string>
#include <vector>

namespace foci::cli {

struct Curve {
  double of = 0;  ///< beta, or the squared distance
  std::vector<double> at = {}, concentrations = {};
};

/// `kind` is softmax (which does not look at beta and has one curve), identity or relu2. Gammas go
/// from near 0 to `most`.
std::vector<Curve> curves_over_gamma(const std::string& kind, double most);
/// Temperatures from 1/10 to 1000.
std::vector<Curve> curves_over_temperature(std::int64_t dim);

/// Each with beta and gamma, or distance2 and temperature, and concentration.
Json json_of(const std::string& kind, const std::vector<Curve>& curves);
report::LineChart chart_of(const std::string& kind, const std::vector<Curve>& curves);

}  // namespace foci::cli
