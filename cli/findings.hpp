// SPDX-License-Identifier: Apache-2.0
// How far two results lie apart, and whether that is near enough.
#pragma once

#include "cli/problem.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace foci::cli {

/// One tensor held against one standard.
struct Finding {
  std::string name;
  std::string against;  ///< "ref f64", "finite differences", "the file"
  double error = 0;     ///< max |ours - standard|
  double naive_error =
      0;  ///< max |ref in the same number type - standard|; 0 for the other standards
  double tolerance = 0;
  bool passed = true;
  std::string note;  ///< why nothing was compared; empty when it was
};

using Tensors = std::map<std::string, Tensor>;

/// max |a - b|; equal infinities and NaN in the same place count as 0, otherwise as infinite.
double distance(const Tensor& a, const Tensor& b);
/// The largest finite |x|.
double largest(const Tensor& a);
/// The spacing of numbers at 1.
double epsilon(DType dtype);

/// error <= 2 naive_error + eps largest|exact| for every floating tensor.
std::vector<Finding> precision_findings(const Tensors& ours, const Tensors& naive,
                                        const Tensors& exact);

/// The same rule over several draws: the largest error against the largest naive one and the
/// largest value. `more` holds the findings of another draw, in the same order.
void pool(std::vector<Finding>& findings, const std::vector<Finding>& more);

/// Gradients of ref in f64 against central differences of the forward pass along random directions.
/// `problem` is in f64 and has `do`.
std::vector<Finding> difference_findings(const Problem& problem, const Options& how,
                                         Executor& threads, std::uint64_t seed);

/// ref in f64 against the f64 answers a file holds, to 1e-10 of the largest value.
std::vector<Finding> answer_findings(const Tensors& exact, const Safetensors& file,
                                     const Options& how);

/// The one furthest beyond its tolerance; when all pass, the one against ref that comes nearest to
/// it.
const Finding& worst(const std::vector<Finding>& findings);

}  // namespace foci::cli
