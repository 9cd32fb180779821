// SPDX-License-Identifier: Apache-2.0
// Concentration: the fixed numbers, simulation against every closed form, the limits, and what has
// no concentration.
#include <foci/theory.hpp>

#include <foci/error.hpp>

#include "thrown.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace foci::theory;
using foci::InvalidArgument;
using foci::thrown;

TEST(Theory, FixedNumbers) {
  const std::vector<std::pair<Form, double>> known = {
      {Relu2{{-2, 1}}, 0.072006},
      {Relu2{{-1, 1}}, 0.205256},
      {Relu2{{0, 1}}, 0.408248},
      {Relu2{{1, 1}}, 0.612773},
      {Relu2{{-1, 3}}, 0.336399},
      {Identity{{0, 1}}, 0.797885},
      {Identity{{1, 1}}, 0.824933},
      {Identity{{2, .5}}, 0.970146},
      {Softmax{{3, 1}}, 0.606531},
      {Decay{0.9, 50}, 0.613273},
      {Ellipsoid{64, 0, 1}, std::pow(0.75, 16)},
      {Ellipsoid{64, 6, 1}, std::pow(0.75, 16) * std::exp(-0.5)},
      {Linear{{1, 1}, {2, 2}, {1, 0, 0, 1}}, 1 / std::sqrt(1 + 1 / 8.0)}};
  for (const auto& [form, S] : known)
    EXPECT_NEAR(concentration(form), S, 5e-7) << form.index() << " " << S;
}

/// Every form, with weights from all alike to a few keys of a million that have all of them.
std::vector<Form> drawn_forms() {
  std::vector<Form> forms = {Linear{{1, 2, 0.5}, {1, 1, 2}, {.5, .1, 0, .1, .3, .05, 0, .05, 1}},
                             Linear{{1, 0}, {2, 0}, {1, 0, 0, 0}},
                             Linear{{1, 2}, {1, 0.5}, {400, 20, 20, 9}},
                             Linear{{1e200, 2e200}, {1e200, 1e200}, {0, 0, 0, 0}},
                             Decay{0.99, 1000},
                             Decay{1, 7},
                             Decay{1, 1000000000000},
                             Decay{1 - 1e-12, 1000000000000},
                             Ellipsoid{2, 3, 1e-310},
                             Ellipsoid{2, 3, 1e6}};
  for (const std::int64_t dim : {1, 4, 8, 64}) {
    for (const double temperature : {0.5, 1.0, 2.0, 8.0}) {
      for (const double share : {0.0, 0.5, 1.0})
        forms.push_back(Ellipsoid{dim, share * double(dim), temperature});
    }
  }
  for (const double gamma : {0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0}) {
    forms.push_back(Softmax{{5, gamma}});
    for (const double beta : {-8.0, -2.0, -0.5, 0.5, 2.0}) {
      forms.push_back(Identity{{beta, gamma}});
      if (gamma > 0 || beta > 0) forms.push_back(Relu2{{beta, gamma}});
    }
  }
  return forms;
}

TEST(Theory, SimulationAgreesWithEveryForm) {
  std::size_t at = 0;
  for (const Form& form : drawn_forms()) {
    const Simulated found = simulate(form, 20000, 3);
    const double S = concentration(form);
    EXPECT_NEAR(found.concentration, S, 4 * found.standard_error + 1e-12) << at;
    EXPECT_LE(found.standard_error, 0.05 * S) << at << ", of form " << form.index();
    EXPECT_EQ(simulate(form, 1000, 9).concentration, simulate(form, 1000, 9).concentration);
    ++at;
  }
}

/// Distances from the truth are as the standard errors say: neither a tail that no draw shows nor
/// errors that are too large.
TEST(Theory, ErrorsOfSimulationsAreTheirErrors) {
  const std::vector<Form> forms = {Softmax{{0, 0.5}},
                                   Softmax{{0, 4}},
                                   Identity{{1, 1}},
                                   Relu2{{-8, 1}},
                                   Ellipsoid{64, 0, 1},
                                   Ellipsoid{16, 8, 2},
                                   Linear{{1, 2}, {1, 0.5}, {400, 20, 20, 9}}};
  for (std::size_t i = 0; i < forms.size(); ++i) {
    const double S = concentration(forms[i]);
    double squares = 0;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      const Simulated found = simulate(forms[i], 1000, seed);
      const double off = (found.concentration - S) / found.standard_error;
      squares += off * off / 200;
    }
    EXPECT_GT(squares, 0.7) << i;
    EXPECT_LT(squares, 1.4) << i;
  }
}

TEST(Theory, LimitsNeitherOverflowNorCancel) {
  // By quadrature with thirty digits.
  const std::vector<std::pair<double, double>> tails = {{-1.0000001, 0.20525563484403535},
                                                        {-2, 0.07200634266702314},
                                                        {-10, 1.147394637084315e-12},
                                                        {-20, 2.152722243554448e-45},
                                                        {-50, 1.3430812640832188e-273}};
  for (const auto& [t, S] : tails) {
    EXPECT_NEAR(concentration(Relu2{{t, 1}}) / S, 1, 1e-13) << t;
    EXPECT_NEAR(concentration(Relu2{{t * 1e150, 1e150}}) / S, 1, 1e-13) << t;
  }
  EXPECT_EQ(concentration(Relu2{{-1e300, 1}}), 0);
  EXPECT_EQ(concentration(Relu2{{1e300, 1e-300}}), 1);
  EXPECT_EQ(concentration(Identity{{-1e300, 1e-300}}), 1);
  for (const double far : {1e4, 1e200}) {
    EXPECT_NEAR(concentration(Relu2{{far, 1}}), 1, 1e-7);
    EXPECT_NEAR(concentration(Identity{{-far, 1}}), 1, 1e-8);
    EXPECT_EQ(concentration(Softmax{{-far, 0}}), 1);
  }
  EXPECT_NEAR(concentration(Relu2{{999, 1}}), concentration(Relu2{{1001, 1}}), 1e-8);
  EXPECT_EQ(concentration(Identity{{3, 0}}), 1);
  EXPECT_EQ(concentration(Softmax{{0, 1e200}}), 0);
  EXPECT_NEAR(concentration(Decay{1 - 1e-12, 1000}), 1, 1e-12);
  EXPECT_NEAR(concentration(Decay{1e-300, 100}), 0.1, 1e-12);
  EXPECT_EQ(concentration(Decay{0.5, 1}), 1);
  EXPECT_NEAR(concentration(Ellipsoid{64, 0, 1e9}), 1, 1e-12);
  EXPECT_EQ(simulate(Softmax{{0, 1e308}}, 10, 0).concentration, 0);
  EXPECT_EQ(simulate(Relu2{{-1e308, 1}}, 10, 0).concentration, 0);
  EXPECT_NEAR(simulate(Identity{{1e308, 1e308}}, 10000, 0).concentration,
              concentration(Identity{{1, 1}}), 0.02);
  EXPECT_EQ(simulate(Identity{{1e308, 0}}, 10, 0).concentration, 1);
  for (const double temperature : {1e-310, 1e-20, 1e300}) {
    const double share = temperature < 1 ? std::pow(2 * temperature, 0.25) : 1;
    EXPECT_NEAR(concentration(Ellipsoid{1, 0, temperature}) / share, 1, 1e-12) << temperature;
  }
  for (const double size : {1e200, 1e-200, 1e150}) {  // S knows no scale
    EXPECT_NEAR(concentration(Linear{{size, size}, {size, size}, {0, 0, 0, 0}}), 1, 1e-15) << size;
    EXPECT_NEAR(concentration(Linear{{size}, {1e-100}, {1e-200}}), std::sqrt(0.5), 1e-15) << size;
  }
  EXPECT_NEAR(concentration(Linear{{1, 1e-300}, {0, 1e300}, {1, 0, 0, 0}}), std::sqrt(0.5), 1e-15);
  // v v^T with v.q = 0: what is left of the variance is rounding.
  const std::vector<double> v = {1.1, 2.3, -3.4};
  Linear flat{{1, 1, 1}, {1, 1, 1}, {}};
  for (const double a : v) {
    for (const double b : v) flat.covariance.push_back(a * b);
  }
  EXPECT_NEAR(concentration(flat), 1, 1e-12);
  EXPECT_EQ(simulate(Softmax{{1e308, 1}}, 100, 0).concentration,
            simulate(Softmax{{0, 1}}, 100, 0).concentration);
}

TEST(Theory, ATemperatureGivesTheFullMetricDotsConcentration) {
  for (const double S : {1e-6, 0.01, 0.5, 0.99}) {
    for (const std::int64_t dim : {1, 16, 64}) {
      const std::vector<double> distances = {0, 1, double(dim)};
      const double temperature = temperature_at(S, dim, distances);
      double mean = 0;
      for (const double square : distances)
        mean += concentration(Ellipsoid{dim, square, temperature}) / 3;
      EXPECT_NEAR(mean / S, 1, 1e-10) << S << " " << dim;
    }
  }
  const std::vector<double> centre = {0};
  EXPECT_NEAR(temperature_at(std::pow(0.75, 16), 64, centre), 1, 1e-12);
  EXPECT_GT(temperature_at(0.9, 64, centre), temperature_at(0.5, 64, centre));
}

TEST(Theory, ScoresUnderADiagonalMetric) {
  const std::vector<double> q = {1, 2}, m = {1, 0.5}, mean = {3, -1}, covariance = {2, 1, 1, 4};
  const Scores of = scores_of(q, m, mean, covariance, 0.5);
  EXPECT_DOUBLE_EQ(of.beta, 0.5 * (1 * 1 * 3 + 2 * 0.5 * -1));
  EXPECT_DOUBLE_EQ(of.gamma, 0.5 * std::sqrt(2.0 + 2 * 1 + 4));
}

TEST(Theory, WhatMeansNothingIsRefused) {
  const auto says = [](const Form& form) {
    return thrown<InvalidArgument>([&] { concentration(form); });
  };
  EXPECT_EQ(says(Softmax{{0, -1}}), "gamma is -1; it must be a finite number from 0 on");
  EXPECT_EQ(says(Identity{{0, 0}}),
            "beta and gamma are 0: all weights are 0 and have no concentration");
  EXPECT_EQ(says(Relu2{{-1, 0}}),
            "gamma is 0 and beta not above 0: all weights are 0 and have no concentration");
  EXPECT_EQ(says(Decay{1.5, 3}), "rate is 1.5; it must be above 0 and at most 1");
  EXPECT_EQ(says(Decay{0.5, 0}), "keys is 0; it must be at least 1");
  EXPECT_EQ(says(Ellipsoid{0, 0, 1}), "dim is 0; it must be at least 1");
  EXPECT_EQ(says(Ellipsoid{1, -1, 1}), "distance2 is -1; it must be 0 or above");
  EXPECT_EQ(says(Ellipsoid{1, 0, 0}), "temperature is 0; it must be above 0");
  EXPECT_EQ(says(Linear{{1}, {1}, {1, 2}}),
            "a query of 1 numbers, a mean of 1 and a covariance of 2: they must be D, D and D x D");
  EXPECT_EQ(says(Linear{{1}, {-1}, {1}}), "mean is -1; it must be 0 or above");
  EXPECT_EQ(says(Linear{{1, 1}, {1, 1}, {1, 0.5, 0, 1}}),
            "covariance is 0.5; it must be symmetric");
  EXPECT_EQ(says(Linear{{1, 0}, {0, 1}, {1, 0, 0, 1}}),
            "query and mean have no part in common: all weights are 0 and have no concentration");
  EXPECT_EQ(thrown<InvalidArgument>([] { simulate(Softmax{}, 1, 0); }),
            "1 keys to simulate; 2 or more");
  EXPECT_EQ(thrown<InvalidArgument>([] { simulate(Softmax{}, 1000000000000, 0); }),
            "1000000000000 keys to simulate; at most 100000000");
  EXPECT_EQ(says(Linear{{1, 1}, {1, 1}, {1, -2, -2, 1}}),
            "the variance of a weight is -2; it must be 0 or above");
  EXPECT_EQ(thrown<InvalidArgument>([] {
              simulate(Ellipsoid{1000000000, 0, 1}, 1000, 0);
            }),
            "1000 keys of 1000000000 numbers to simulate; at most 10000000000 numbers in all");
  bool none_above = false;  // of two keys that may both have none
  for (std::uint64_t seed = 0; seed < 20 && !none_above; ++seed) {
    try {
      simulate(Relu2{{-60, 1}}, 2, seed);
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(), "no key of the simulation has a weight above 0: draw more");
      none_above = true;
    }
  }
  EXPECT_TRUE(none_above);
  const std::vector<double> none, negative = {-1}, centre = {0};
  EXPECT_EQ(thrown<InvalidArgument>([&] { temperature_at(1, 4, centre); }),
            "concentration is 1; it must be above 0 and below 1");
  EXPECT_EQ(thrown<InvalidArgument>([&] { temperature_at(0.5, 4, none); }),
            "no query to find a temperature for");
  EXPECT_EQ(thrown<InvalidArgument>([&] { temperature_at(0.5, 4, negative); }),
            "distance2 is -1; it must be 0 or above");
  EXPECT_EQ(thrown<InvalidArgument>([] {
              simulate(Linear{{1, 1}, {1, 1}, {1, -2, -2, 5}}, 10, 0);
            }),
            "no features with normal logarithms have this mean and covariance: leave simulate out");
}

}  // namespace
