// SPDX-License-Identifier: Apache-2.0
// How far two results lie apart: the tolerance rule of the library's tests, and answers kept in a
// file.
#include "cli/findings.hpp"

#include "cli/mechanism.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

namespace foci::cli {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double answer_tolerance = 1e-10;

double apart(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double gap = std::abs(a - b);
  return std::isnan(gap) ? infinity : gap;
}

bool has_a_number(const Tensor& tensor) {
  const auto values = tensor.values();
  return std::any_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

/// How much of its tolerance a finding uses up.
double strain(const Finding& finding) {
  if (finding.error == 0) return 0;
  return finding.tolerance > 0 ? finding.error / finding.tolerance : infinity;
}

}  // namespace

double distance(const Tensor& a, const Tensor& b) {
  const auto left = a.values(), right = b.values();
  if (left.size() != right.size()) return infinity;
  double most = 0;
  for (std::size_t i = 0; i < left.size(); ++i) most = std::max(most, apart(left[i], right[i]));
  return most;
}

double largest(const Tensor& a) {
  double most = 0;
  for (const double x : a.values()) {
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  }
  return most;
}

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52;
    case DType::bf16:
      return 0x1p-7;
    case DType::f16:
      return 0x1p-10;
    default:
      return 0x1p-23;
  }
}

std::vector<Finding> precision_findings(const Tensors& ours, const Tensors& naive,
                                        const Tensors& exact) {
  std::vector<Finding> findings;
  for (const auto& [name, tensor] : ours) {
    const DType dtype = tensor.view().dtype;
    if (!is_floating(dtype)) continue;
    Finding finding{.name = name, .against = "ref f64", .note = {}};
    if (!has_a_number(exact.at(name))) {
      finding.note = "ref gives it no finite number";
      findings.push_back(finding);
      continue;
    }
    finding.error = distance(tensor, exact.at(name));
    finding.naive_error = distance(naive.at(name), exact.at(name));
    finding.tolerance = 2 * finding.naive_error + epsilon(dtype) * largest(exact.at(name));
    finding.passed = finding.error <= finding.tolerance && std::isfinite(finding.error);
    findings.push_back(finding);
  }
  return findings;
}

void pool(std::vector<Finding>& findings, const std::vector<Finding>& more) {
  for (std::size_t i = 0; i < findings.size() && i < more.size(); ++i) {
    Finding& to = findings[i];
    const double rounding =
        std::max(to.tolerance - 2 * to.naive_error, more[i].tolerance - 2 * more[i].naive_error);
    to.error = std::max(to.error, more[i].error);
    to.naive_error = std::max(to.naive_error, more[i].naive_error);
    to.tolerance = 2 * to.naive_error + rounding;
    to.passed = to.error <= to.tolerance && std::isfinite(to.error);
  }
}

std::vector<Finding> answer_findings(const Tensors& exact, const Safetensors& file,
                                     const Options& how) {
  std::vector<Finding> findings;
  for (const auto& [name, tensor] : exact) {
    if (name == "metric" && std::holds_alternative<Given>(how.metric)) continue;
    const View stored = file.find(name);
    if (!stored || stored.dtype != DType::f64) continue;
    const Tensor answer = Tensor::copy(stored, DType::f64);
    Finding finding{.name = name, .against = "the file", .note = {}};
    finding.error = distance(tensor, answer);
    finding.tolerance = answer_tolerance * largest(answer);
    finding.passed = finding.error <= finding.tolerance;
    findings.push_back(finding);
  }
  return findings;
}

const Finding& worst(const std::vector<Finding>& findings) {
  const auto rank = [](const Finding& f) { return std::pair(!f.passed, f.against == "ref f64"); };
  const auto milder = [&](const Finding& a, const Finding& b) {
    return rank(a) != rank(b) ? rank(a) < rank(b) : strain(a) < strain(b);
  };
  return *std::max_element(findings.begin(), findings.end(), milder);
}

}  // namespace foci::cli
