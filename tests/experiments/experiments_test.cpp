// SPDX-License-Identifier: Apache-2.0
// The experiments: a seed gives the same numbers whoever runs them, what docs/theory.md says of
// them holds, the bound is reached and never passed, and sizes that mean nothing are refused.
#include <foci/experiments.hpp>

#include <foci/error.hpp>
#include <foci/executor.hpp>

#include "experiments/symmetric.hpp"
#include "experiments/trial.hpp"
#include "sanitized.hpp"
#include "thrown.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace {

using namespace foci::experiments;
using foci::InvalidArgument;
using foci::thrown;

/// All numbers of a result, one after another.
Vector numbers(const Result& of) {
  Vector all;
  const auto add = [&](const Estimate& y) {
    all.push_back(y.value);
    all.push_back(y.standard_error);
  };
  for (const Chart& chart : of.charts) {
    for (const Series& series : chart.series) {
      EXPECT_EQ(series.x.size(), series.y.size()) << series.name;
      for (const Estimate& y : series.y) add(y);
    }
  }
  for (const auto& row : of.table.rows) {
    EXPECT_EQ(row.values.size(), of.table.columns.size()) << row.name;
    for (const Estimate& value : row.values) add(value);
  }
  return all;
}

const Estimate& at(const Result& of, const std::string& row, std::size_t column) {
  for (const auto& one : of.table.rows) {
    if (one.name == row) return one.values.at(column);
  }
  throw std::out_of_range(row);
}

const Series& series(const Chart& of, const std::string& name, Kind kind = Kind::measured) {
  for (const Series& one : of.series) {
    if (one.name == name && one.kind == kind) return one;
  }
  throw std::out_of_range(name);
}

TEST(Experiments, NumbersHangOnTheSeedAlone) {
  foci::set_warning_handler([](std::string_view) {});
  foci::Executor threads(3);
  const std::vector<Experiment> all = {Ellipse{.dim = 3, .keys = 20, .runs = 3, .noise = 0.2},
                                       PerturbedQuery{.dim = 2, .keys = 3, .runs = 4},
                                       Recovery{.dim = 3, .keys = 16, .runs = 3, .noise = 0.1},
                                       Weights{.dim = 3, .keys = 20, .runs = 3},
                                       Covariance{.dim = 3, .runs = 3},
                                       Collapse{.dim = 3, .keys = 8, .runs = 3, .layers = 3}};
  EXPECT_EQ(all.size(), std::variant_size_v<Experiment>);
  for (const Experiment& one : all) {
    const Vector first = numbers(run(one, 5));
    EXPECT_EQ(first, numbers(run(one, 5, &threads))) << one.index();
    EXPECT_NE(first, numbers(run(one, 6))) << one.index();
    for (const double x : first) EXPECT_TRUE(std::isfinite(x)) << one.index();
  }
  foci::set_warning_handler(nullptr);
}

TEST(Experiments, TheSmallestHaveNumbersToo) {
  foci::set_warning_handler([](std::string_view) {});
  const std::vector<Experiment> all = {Ellipse{.dim = 1, .keys = 2, .runs = 2, .noise = 0},
                                       PerturbedQuery{.dim = 1, .keys = 2, .runs = 2},
                                       Recovery{.dim = 2, .keys = 2, .runs = 2, .noise = 0},
                                       Weights{.dim = 1, .keys = 2, .runs = 2},
                                       Covariance{.dim = 1, .runs = 2},
                                       Collapse{.dim = 2, .keys = 2, .runs = 2, .layers = 1}};
  for (const Experiment& one : all) {
    for (const double x : numbers(run(one))) EXPECT_TRUE(std::isfinite(x)) << one.index();
  }
  foci::set_warning_handler(nullptr);
}

/// What docs/theory.md says, at the sizes it says it of.
class Claims : public testing::Test {
  void SetUp() override {
    if (foci::sanitized) GTEST_SKIP() << "the tests above run the same code, and faster";
  }
};

TEST_F(Claims, TheTrueEllipseBeatsTheSphereAndARandomOneDoesNot) {
  const Result found = run(Ellipse{}, 1);
  const Estimate sphere = at(found, "sphere (dot)", 0), ellipse = at(found, "true variability", 0),
                 estimated = at(found, "estimated (jacobian)", 0), random = at(found, "random", 0);
  const double doubt = 3 * std::hypot(sphere.standard_error, estimated.standard_error);
  EXPECT_LT(estimated.value, sphere.value - doubt);
  EXPECT_LT(ellipse.value, 0.5 * estimated.value);
  EXPECT_GT(random.value, estimated.value);
  EXPECT_NEAR(at(found, "flat", 0).value, sphere.value, 0.1 * sphere.value);  // but for the grid
  for (const Series& one : found.charts[2].series) {  // in one dimension there is one shape
    EXPECT_EQ(one.x[0], 1);
    EXPECT_EQ(one.y[0].value, found.charts[2].series[0].y[0].value) << one.name;
  }
  const auto& over_dimension = series(found.charts[2], "sphere (dot)").y;
  EXPECT_GT(over_dimension.back().value, 10 * over_dimension[1].value);
  const auto& over_noise = series(found.charts[1], "true variability").y;
  EXPECT_GT(over_noise.back().value, over_noise.front().value);
}

/// A search that could not find a bound that is a hundredth too small would prove nothing.
TEST_F(Claims, TheSearchReachesTheBoundAndFindsNoViolation) {
  for (const PerturbedQuery& of :
       {PerturbedQuery{.runs = 30}, PerturbedQuery{.dim = 1, .keys = 2, .runs = 20}}) {
    const Result found = run(of, 2);
    for (const char* geometry : {"dot", "diagonal", "full"}) {
      EXPECT_GT(at(found, geometry, 0).value, 1000);
      EXPECT_EQ(at(found, geometry, 1).value, 0) << geometry;
      for (const std::size_t bound : {2, 3, 4}) {
        EXPECT_LE(at(found, geometry, bound).value, 1 + 1e-9) << geometry;
        EXPECT_GT(at(found, geometry, bound).value, 0.99) << geometry;
      }
      EXPECT_LT(at(found, geometry, 5).value, 0.7) << geometry;
    }
  }
}

/// Two keys, weights sigma(-R/2) and sigma(R/2), and a move that swaps them.
TEST(Experiments, TwoKeysReachTheBound) {
  for (const double R : {0.01, 1.0, 8.0}) {
    const Vector q = {-R / 2, R / 2}, k = {0, 1}, v = {0, 1};
    const Vector o = outputs({.q = foci::View(q.data(), {1, 1, 2, 1}),
                              .k = foci::View(k.data(), {1, 1, 2, 1}),
                              .v = foci::View(v.data(), {1, 1, 2, 1})},
                             {.scale = 1.0});
    EXPECT_NEAR(o[1] - o[0], std::tanh(R / 4), 1e-14);
  }
}

TEST_F(Claims, LayerChangeFindsRowsAndJacobianColumns) {
  const Result found = run(Recovery{}, 3);
  EXPECT_GT(at(found, "layer-change, own coordinate", 0).value, 0.7);
  EXPECT_LT(std::abs(at(found, "layer-change, mixed", 0).value), 0.35);
  EXPECT_GT(at(found, "jacobian, own coordinate", 0).value, 0.8);
  EXPECT_GT(at(found, "jacobian, mixed", 0).value, 0.8);
  EXPECT_EQ(at(found, "flat (knows nothing)", 0).value, 0);
  EXPECT_NEAR(at(found, "layer-change, mixed", 1).value, at(found, "flat (knows nothing)", 1).value,
              0.05);
  const auto& over_noise = series(found.charts[1], "layer-change, own coordinate").y;
  EXPECT_GT(over_noise.front().value, 0.98);
  EXPECT_LT(over_noise.back().value, 0.35);
}

TEST_F(Claims, WeightsAreThoseOfTheClosedForms) {
  const Result found = run(Weights{.keys = 1024, .runs = 4}, 4);
  for (const char* arm : {"dot", "diagonal", "full, scale auto"})
    EXPECT_NEAR(at(found, arm, 2).value, 1, 0.05) << arm;
  EXPECT_NEAR(at(found, "full, scale auto", 0).value, at(found, "dot", 0).value,
              0.1 * at(found, "dot", 0).value);
  EXPECT_LT(at(found, "full, c = 1", 0).value, 0.1 * at(found, "dot", 0).value);
  const Series &held = series(found.charts[0], "dot"),
               &closed = series(found.charts[0], "dot", Kind::closed);
  for (std::size_t i = 0; i < held.x.size(); ++i)
    EXPECT_NEAR(held.y[i].value, closed.y[i].value, 4 * held.y[i].standard_error + 1e-9);
  EXPECT_NEAR(held.y.back().value, 1, 1e-12);
}

TEST_F(Claims, ACovarianceNeedsKeys) {
  foci::set_warning_handler([](std::string_view) {});
  const Result found = run(Covariance{.runs = 4}, 5);
  foci::set_warning_handler(nullptr);
  EXPECT_GT(at(found, "ridge 1e-6", 2).value, 1e5);
  EXPECT_LT(at(found, "prior D", 2).value, 10);
  EXPECT_GT(at(found, "ridge 1e-6", 0).value, at(found, "ridge 0.01", 0).value);
  EXPECT_LT(at(found, "ridge 1e-6", 1).value, at(found, "prior D", 1).value);
  const auto& raw = series(found.charts[1], "ridge 1e-6").y;
  for (std::size_t i = 1; i < raw.size(); ++i) EXPECT_LT(raw[i].value, raw[i - 1].value);
  const auto &often = series(found.charts[3], "period 16"),
             &seldom = series(found.charts[3], "period 256");
  EXPECT_EQ(often.y.front().value, seldom.y.front().value);  // the identity
  EXPECT_LT(often.y[2].value, often.y[1].value);
  EXPECT_EQ(seldom.x[1], 255);
  EXPECT_EQ(seldom.y[1].value, seldom.y[0].value);
  for (std::size_t i = 0; i < 4; ++i) {  // the running average is never behind
    EXPECT_LE(series(found.charts[4], "none, bias-corrected (running)").y[i].value,
              series(found.charts[4], "random").y[i].value);
  }
}

TEST_F(Claims, EntropyTellsCollapseButForDistances) {
  const Result found = run(Collapse{}, 6);
  for (const char* arm : {"flat", "random", "layer-change", "jacobian"})
    EXPECT_NEAR(at(found, arm, 2).value, 1, 0.15) << arm;
  for (const char* arm : {"dot, form distance", "key-covariance"})
    EXPECT_LT(at(found, arm, 2).value, 0.85) << arm;
  for (const Series& one : found.charts[0].series) EXPECT_LT(one.y[4].value, 0.02) << one.name;
  const auto &residual = series(found.charts[1], "dot").y,
             &cosine = series(found.charts[2], "dot").y;
  ASSERT_EQ(residual.size(), 13u);
  EXPECT_GT(residual.front().value, 0.95);
  EXPECT_NEAR(cosine.front().value, 0, 0.05);
  EXPECT_LT(residual.back().value, 0.1);
  EXPECT_GT(cosine.back().value, 0.98);
}

TEST(Experiments, SizesThatMeanNothingAreRefused) {
  const auto says = [](const Experiment& one) {
    return thrown<InvalidArgument>([&] { run(one); });
  };
  EXPECT_EQ(says(Ellipse{.dim = 0}), "dim is 0; it must be 1 to 64");
  EXPECT_EQ(says(Ellipse{.noise = -1}), "noise is -1; it must be 0 or above");
  EXPECT_EQ(says(Ellipse{.keys = 1000000}), "keys is 1000000; it must be 2 to 2048");
  EXPECT_EQ(says(PerturbedQuery{.keys = 17}), "keys is 17; it must be 2 to 16");
  EXPECT_EQ(says(PerturbedQuery{.dim = 9}), "dim is 9; it must be 1 to 8");
  EXPECT_EQ(says(Recovery{.dim = 1}), "dim is 1; it must be 2 to 64");
  EXPECT_EQ(says(Weights{.keys = 16385}), "keys is 16385; it must be 2 to 16384");
  EXPECT_EQ(says(Collapse{.keys = 513}), "keys is 513; it must be 2 to 512");
  EXPECT_EQ(says(Covariance{.runs = 1}), "runs is 1; it must be 2 to 10000");
  EXPECT_EQ(says(Collapse{.layers = 0}), "layers is 0; it must be 1 to 1000");
}

TEST(Trial, MatricesAreWhatTheySay) {
  Normal normal(1);
  const Matrix turn = rotation(normal, 5), one = product_transposed(turn, turn);
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < 5; ++j) EXPECT_NEAR(one(i, j), i == j, 1e-14);
  }
  const Matrix L = correlated_factor(4, 0.6), C = product_transposed(L, L);
  EXPECT_NEAR(C(0, 0), 1, 1e-15);
  EXPECT_NEAR(std::sqrt(C(3, 3)), 0.25, 1e-15);
  for (std::int64_t d = 1; d < 4; ++d)
    EXPECT_NEAR(C(d, d - 1) / std::sqrt(C(d, d) * C(d - 1, d - 1)), 0.6, 1e-14);
  Matrix known(2, 2);
  known.values = {2, 1, 1, 2};
  Vector values = eigenvalues(known);
  std::sort(values.begin(), values.end());
  EXPECT_NEAR(values[0], 1, 1e-14);
  EXPECT_NEAR(values[1], 3, 1e-14);
  Matrix stretched(5, 5);  // eigenvalues over twelve decades, in a turned basis
  for (std::int64_t d = 0; d < 5; ++d) stretched(d, d) = std::pow(1000.0, double(d));
  Matrix back(5, 5);
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < 5; ++j) back(i, j) = turn(j, i);
  }
  values = eigenvalues(product(product(back, stretched), turn));
  std::sort(values.begin(), values.end());
  for (std::int64_t d = 1; d < 5; ++d)
    EXPECT_NEAR(values[std::size_t(d)] / std::pow(1000.0, double(d)), 1, 1e-2);
}

TEST(Trial, AMeanHasAStandardError) {
  const Estimate of = mean_of(Vector{1, 2, 3, 6});
  EXPECT_DOUBLE_EQ(of.value, 3);
  EXPECT_DOUBLE_EQ(of.standard_error, std::sqrt((4.0 + 1 + 0 + 9) / 3 / 4));
  EXPECT_EQ(mean_of(Vector{0.1, 0.1, 0.1}).standard_error, 0);
}

}  // namespace
