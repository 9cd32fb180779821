// SPDX-License-Identifier: Apache-2.0
// Each experiment, once its sizes have been checked.
#pragma once

#include <foci/experiments.hpp>

namespace foci::experiments {

/// How an experiment is carried out.
struct Setting {
  std::uint64_t seed = 0;
  Executor* threads = nullptr;
};

Result run(const Ellipse& of, const Setting& in);
Result run(const PerturbedQuery& of, const Setting& in);
Result run(const Recovery& of, const Setting& in);
Result run(const Weights& of, const Setting& in);
Result run(const Covariance& of, const Setting& in);
Result run(const Collapse& of, const Setting& in);

}  // namespace foci::experiments
