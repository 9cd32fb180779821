// SPDX-License-Identifier: Apache-2.0
// S over gamma, one curve for each beta, as numbers and as an SVG that reads in light and dark.
#pragma once

#include "cli/mechanism.hpp"

#include <string>
#include <vector>

namespace foci::cli {

struct GammaCurve {
  double beta = 0;
  std::vector<double> gammas = {}, concentrations = {};
};

/// softmax does not look at beta: it has one curve. Gammas go from near 0 to `most`.
std::vector<GammaCurve> curves_over_gamma(const std::string& weighting, double most);
Json json_of(const std::vector<GammaCurve>& curves);
/// Throws FileError.
void write_curves(const std::string& path, const std::string& weighting,
                  const std::vector<GammaCurve>& curves);

}  // namespace foci::cli
