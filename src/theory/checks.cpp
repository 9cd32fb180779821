// SPDX-License-Identifier: Apache-2.0
// Each number that means nothing has a line; so have forms whose weights are all 0.
#include "theory/checks.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace foci::theory {
namespace {

void check_scores(const Scores& of) {
  want(std::isfinite(of.beta), "beta", of.beta, "a finite number");
  want(std::isfinite(of.gamma) && of.gamma >= 0, "gamma", of.gamma, "a finite number from 0 on");
}

[[noreturn]] void refuse_zeros(const char* why) {
  throw InvalidArgument(std::string(why) + ": all weights are 0 and have no concentration");
}

struct Check {
  void operator()(const Softmax& f) const { check_scores(f.scores); }
  void operator()(const Identity& f) const {
    check_scores(f.scores);
    if (f.scores.gamma == 0 && f.scores.beta == 0) refuse_zeros("beta and gamma are 0");
  }
  void operator()(const Relu2& f) const {
    check_scores(f.scores);
    if (f.scores.gamma == 0 && f.scores.beta <= 0) refuse_zeros("gamma is 0 and beta not above 0");
  }
  void operator()(const Linear& f) const {
    const std::size_t D = f.query.size();
    if (D == 0 || f.mean.size() != D || f.covariance.size() != D * D) {
      throw InvalidArgument("a query of " + std::to_string(D) + " numbers, a mean of " +
                            std::to_string(f.mean.size()) + " and a covariance of " +
                            std::to_string(f.covariance.size()) + ": they must be D, D and D x D");
    }
    for (const double x : f.query) want(std::isfinite(x) && x >= 0, "query", x, "0 or above");
    for (const double x : f.mean) want(std::isfinite(x) && x >= 0, "mean", x, "0 or above");
    for (std::size_t d = 0; d < D; ++d) {
      for (std::size_t e = 0; e < D; ++e) {
        const double x = f.covariance[d * D + e], other = f.covariance[e * D + d];
        want(std::isfinite(x), "covariance", x, "finite");
        const double size = std::max(std::abs(x), std::abs(other));
        want(std::abs(x - other) <= 1e-9 * size, "covariance", x, "symmetric");
      }
    }
    const Moments of = moments(f);
    if (of.mean == 0) refuse_zeros("query and mean have no part in common");
    // Each entry of a covariance that is singular was rounded.
    const double rounding = std::numeric_limits<double>::epsilon() * double(D + 4);
    want(of.variance >= -rounding * of.terms, "the variance of a weight", double(of.variance),
         "0 or above");
  }
  void operator()(const Decay& f) const {
    want(f.rate > 0 && f.rate <= 1, "rate", f.rate, "above 0 and at most 1");
    want(f.keys >= 1, "keys", double(f.keys), "at least 1");
  }
  void operator()(const Ellipsoid& f) const {
    want(f.dim >= 1, "dim", double(f.dim), "at least 1");
    want(std::isfinite(f.distance2) && f.distance2 >= 0, "distance2", f.distance2, "0 or above");
    want(std::isfinite(f.temperature) && f.temperature > 0, "temperature", f.temperature,
         "above 0");
  }
};

}  // namespace

Moments moments(const Linear& form) {
  const std::size_t D = form.query.size();
  Moments of;
  for (std::size_t d = 0; d < D; ++d) {
    const long double q = form.query[d];
    of.mean += q * form.mean[d];
    for (std::size_t e = 0; e < D; ++e) {
      const long double term = q * form.covariance[d * D + e] * form.query[e];
      of.variance += term;
      of.terms += std::abs(term);
    }
  }
  return of;
}

double ratio(const Scores& of) { return std::clamp(of.beta / of.gamma, -1e150, 1e150); }

void want(bool fine, const char* name, double value, const char* needed) {
  if (fine) return;
  throw InvalidArgument(std::string(name) + " is " + digits(value) + "; it must be " + needed);
}

void check(const Form& form) { std::visit(Check(), form); }

std::string digits(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

}  // namespace foci::theory
