// SPDX-License-Identifier: Apache-2.0
// The gradients of every metric x weighting against central differences in double, along random
// directions: full and causal, detached and through. A detached metric is held still by giving it
// as `given`.
#include "mechanisms.hpp"

#include <gtest/gtest.h>

namespace foci {
namespace {

using namespace cases;

double loss(Made& made, const Options& how) {
  const Case& c = made.c;
  const View o = made.fresh("o", {c.B, c.H, c.N, c.E}, DType::f64);
  attend({.o = o}, made.inputs(), how);
  double sum = 0;
  for (std::int64_t i = 0; i < o.count(); ++i)
    sum += made["o"].data<double>()[i] * made["d_o"].data<double>()[i];
  return sum;
}

struct Slope {
  double analytic = 0, measured = 0, tolerance = 0;
};

/// d loss along a random direction of one input, from its gradient and from differences.
Slope slope(Made& made, const Options& how, const std::string& input, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> draw;
  const Tensor& x = made[input];
  const Tensor& dx = made[input == "metric" ? "dmetric" : "d" + input];
  const std::int64_t count = x.view().count();
  std::vector<double> direction(static_cast<std::size_t>(count));
  for (double& d : direction) d = draw(random);
  for (std::int64_t i = 0; i < count && input == "metric"; ++i) {
    if (x.data<double>()[i] == 0) direction[i] = 0;  // m >= 0 is an edge
  }
  if (input == "metric" &&
      std::get<Given>(how.metric).extent == Extent::full) {  // P stays symmetric
    const std::int64_t D = made.c.D;
    for (std::int64_t s = 0; s < count / (D * D); ++s) {
      for (std::int64_t i = 0; i < D; ++i) {
        for (std::int64_t j = 0; j < i; ++j)
          direction[(s * D + i) * D + j] = direction[(s * D + j) * D + i];
      }
    }
  }
  Slope of;
  double size = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    of.analytic += dx.data<double>()[i] * direction[i];
    size += std::abs(dx.data<double>()[i] * direction[i]);
  }
  const std::vector<double> at = x.values();
  const auto moved = [&](double step) {
    for (std::int64_t i = 0; i < count; ++i) x.data<double>()[i] = at[i] + step * direction[i];
    return loss(made, how);
  };
  // Fourth-order differences. A kink (|x|, max, relu) may lie inside one step, not inside the next
  // smaller one; a wrong term shows at every step.
  double best = std::numeric_limits<double>::infinity();
  for (const double h : {2e-5, 1e-6, 1e-7}) {
    const double measured =
        (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);
    if (std::abs(measured - of.analytic) >= best) continue;
    best = std::abs(measured - of.analytic);
    of.measured = measured;
  }
  moved(0);
  of.tolerance = 2e-8 * (size + 1);
  return of;
}

void check_inputs(Made& made, const Options& how, const std::vector<std::string>& inputs) {
  attend_backward(all_gradients(made, how), made.inputs(), {}, how);
  for (const std::string& input : inputs) {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      const Slope of = slope(made, how, input, seed);
      EXPECT_NEAR(of.analytic, of.measured, of.tolerance) << "d" << input;
    }
  }
}

/// The same problem with its metric computed once and then given, for a detached gradient.
Options frozen(Made& made, const Options& how) {
  const Shape shape = metric_shape(made.inputs(), how);
  const View m = made.fresh("metric", shape, DType::f64);
  const View o = made.fresh("o", {made.c.B, made.c.H, made.c.N, made.c.E}, DType::f64);
  Inputs from = made.inputs();
  from.metric = {};
  attend({.o = o, .metric = m}, from, how);
  Options still = how;
  const Form form = std::visit(
      [](const auto& metric) {
        if constexpr (requires { metric.form; }) return metric.form;
        return Form::product;
      },
      how.metric);
  still.metric = Given{
      form, std::holds_alternative<KeyCovariance>(how.metric) ? Extent::full : Extent::diagonal};
  return still;
}

enum class Sight { full, causal };

struct Setting {
  NamedMetric metric;
  NamedWeighting weighting;
  Sight sight;
};

void PrintTo(const Setting& of, std::ostream* out) {
  *out << of.metric.name << " with " << of.weighting.name;
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Sight sight : {Sight::full, Sight::causal}) {
    for (const auto& metric : metrics()) {
      for (const auto& weighting : weightings()) all.push_back({metric, weighting, sight});
    }
  }
  return all;
}

class Gradient : public testing::TestWithParam<Setting> {
 protected:
  Gradient() : made_({"gradient", 2, 4, 2, 7, 7, 4, 4, Masked::holes}, 11) {
    how_.metric = GetParam().metric.metric;
    how_.weighting = GetParam().weighting.weighting;
    how_.causal = GetParam().sight == Sight::causal;
    give_metric(made_, how_.metric);
    if (refused(made_.inputs(), how_).empty()) {
      made_.normal("key_bias", {2, 4, 7}, 1);
      if (!refused(made_.inputs(), how_).empty()) {  // no place for a bias
        Made without(made_.c, 11);
        give_metric(without, how_.metric);
        made_ = std::move(without);
      }
    }
  }

  std::vector<std::string> inputs() const {
    std::vector<std::string> names{"q", "k", "v", "v_prev"};
    if (made_.find("key_bias")) names.push_back("key_bias");
    return names;
  }

  Made made_;
  Options how_;
};

TEST_P(Gradient, through_the_estimate) {
  if (const std::string why = refused(made_.inputs(), how_); !why.empty()) {
    const bool known = why.find("does not go with") != why.npos ||
                       why.find("causal only") != why.npos || why.find("reduce median") != why.npos;
    EXPECT_TRUE(known) << why;
    return;
  }
  how_.metric_grad = MetricGrad::through;
  std::vector<std::string> names = inputs();
  if (made_.find("metric") && !metric_shape(made_.inputs(), how_).empty())
    names.push_back("metric");
  check_inputs(made_, how_, names);
}

TEST_P(Gradient, detached_from_the_estimate) {
  const bool estimated =
      !std::holds_alternative<Dot>(how_.metric) && !std::holds_alternative<Given>(how_.metric);
  const bool chunked =
      std::holds_alternative<KeyCovariance>(how_.metric) && how_.causal;  // cannot be given
  if (!refused(made_.inputs(), how_).empty() || !estimated || chunked) return;
  if (metric_shape(made_.inputs(), how_).empty()) return;  // decay alone ignores the metric
  how_.metric_grad = MetricGrad::detached;
  attend_backward(all_gradients(made_, how_), made_.inputs(), {}, how_);
  std::map<std::string, std::vector<double>> detached;
  std::vector<std::string> names = inputs();
  names.push_back("metric");
  for (const std::string& name : names) detached["d" + name] = made_["d" + name].values();

  const Options still = frozen(made_, how_);
  check_inputs(made_, still, names);
  for (const std::string& name : names) {
    const std::vector<double> given = made_["d" + name].values();
    ASSERT_EQ(given.size(), detached["d" + name].size());
    for (std::size_t i = 0; i < given.size(); ++i)
      EXPECT_NEAR(given[i], detached["d" + name][i], 1e-9) << name;
  }
}

std::string setting_name(const testing::TestParamInfo<Setting>& info) {
  return info.param.metric.name + "_with_" + info.param.weighting.name +
         (info.param.sight == Sight::causal ? "_causal" : "");
}

INSTANTIATE_TEST_SUITE_P(All, Gradient, testing::ValuesIn(settings()), setting_name);

/// Shapes where an estimate or a chunk could go astray: more keys than queries, more queries than
/// keys, wide values.
TEST(GradientShapes, through_every_estimate) {
  for (const char* name :
       {"more_keys", "more_queries", "narrow", "one_query", "left_padded", "nothing_to_see"}) {
    for (const auto& metric : metrics()) {
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(std::string(name) + " " + metric.name + (causal ? " causal" : ""));
        Made made(shape(name), 5);
        give_metric(made, metric.metric);
        const Options how{
            .metric = metric.metric, .causal = causal, .metric_grad = MetricGrad::through};
        if (!refused(made.inputs(), how).empty()) continue;
        check_inputs(made, how, {"q", "k", "v", "v_prev"});
      }
    }
  }
}

TEST(GradientShapes, jacobian_with_wide_values) {
  Made made(shape("wide_values"), 5);
  check_inputs(made, {.metric = Jacobian{}, .metric_grad = MetricGrad::through}, {"q", "k", "v"});
}

/// A metric shared by the batch gathers its gradient over it.
TEST(GradientShapes, given_metric_shared_by_the_batch) {
  for (const Extent extent : {Extent::diagonal, Extent::full}) {
    Made made(shape("small"), 5);
    const Options how{.metric = Given{Form::product, extent}};
    Made one({"one", 1, 4, 2, 9, 9, 4, 4}, 6);
    give_metric(one, how.metric);
    made.put("metric", Tensor::copy(one["metric"], DType::f64));
    check_inputs(made, how, {"q", "k", "v", "metric"});
  }
}

/// m per query head and per query.
TEST(GradientShapes, given_metric_of_every_head_and_query) {
  Made made(shape("small"), 5);
  Tensor m = Tensor::copy(made.normal("metric", {2, 4, 9, 4}, 1), DType::f64);
  for (std::int64_t i = 0; i < m.view().count(); ++i)
    m.data<double>()[i] = std::abs(m.data<double>()[i]);
  made.put("metric", std::move(m));
  check_inputs(made, {.metric = Given{}, .causal = true}, {"q", "k", "v", "metric"});
}

/// Detached under prefix: with a period longer than the sequence nothing hangs on the estimate, and
/// what is left of a shorter one must be the through gradient less what goes through dP.
TEST(GradientShapes, detached_prefix_covariance) {
  Made whole(shape("small"), 5);
  check_inputs(whole,
               {.metric = KeyCovariance{.ridge = 0.1, .period = 64},
                .causal = true,
                .metric_grad = MetricGrad::detached},
               {"q", "k", "v"});
  const auto gradient = [](MetricGrad grad) {
    auto made = Made(shape("small"), 5);
    const Options how{
        .metric = KeyCovariance{.ridge = 0.1, .period = 4}, .causal = true, .metric_grad = grad};
    attend_backward(all_gradients(made, how), made.inputs(), {}, how);
    return made;
  };
  const Made detached = gradient(MetricGrad::detached), through = gradient(MetricGrad::through);
  for (const char* name : {"dq", "dv", "dmetric"})
    EXPECT_EQ(detached[name].values(), through[name].values()) << name;
  const std::vector<double> a = detached["dk"].values(), b = through["dk"].values();
  for (std::int64_t s = 0; s < 4; ++s) {
    for (std::int64_t j = 0; j < 9 * 4; ++j) {  // keys 0..7 stand in an estimate, the last does not
      EXPECT_EQ(a[s * 36 + j] != b[s * 36 + j], j < 8 * 4) << s << " " << j;
    }
  }
}

/// A bias per key head is one bias for all of its query heads.
TEST(GradientShapes, key_bias_of_key_heads) {
  Made made(shape("holes"), 5);
  made.normal("key_bias", {2, 2, 15}, 1);
  check_inputs(made, {.metric = KeyCovariance{.ridge = 0.1}}, {"q", "k", "v", "key_bias"});
}

}  // namespace
}  // namespace foci
