// SPDX-License-Identifier: Apache-2.0
// Gradients against central differences of sum(o * do) in f64, along random directions. Where a
// gradient treats the estimate as a constant, the differences do too: the metric is frozen and
// handed in as `given`.
#include "cli/findings.hpp"
#include "cli/made.hpp"
#include "cli/mechanism.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <variant>

namespace foci::cli {
namespace {

constexpr int directions = 2;
constexpr double relative_tolerance = 1e-6;
/// Tried in this order until one agrees: large steps meet kinks and curvature, small ones rounding.
constexpr double steps[] = {1e-5, 1e-6, 1e-4, 1e-3, 1e-7};
constexpr double kink_step = 1e-7;  // so small that both sides are alike where there is no kink

std::span<double> numbers(const Tensor& tensor) {
  return {tensor.data<double>(), std::size_t(tensor.view().count())};
}

struct Loss {
  double value = 0;      // sum of o * do
  double magnitude = 0;  // sum of |o * do|: what its rounding is measured by
};

/// A problem whose loss can be asked for again and again.
class Forward {
 public:
  Forward(const Problem& problem, const Options& how, Executor& threads)
      : problem_(problem),
        call_(problem, how, threads, {.statistics = false, .gradients = false}) {}

  Loss loss() {
    call_.forward();
    Loss loss;
    const auto o = numbers(call_.tensors().at("o")), weights = numbers(problem_.tensors.at("do"));
    for (std::size_t i = 0; i < o.size(); ++i) {
      loss.value += o[i] * weights[i];
      loss.magnitude += std::abs(o[i] * weights[i]);
    }
    return loss;
  }

 private:
  const Problem& problem_;
  Prepared call_;
};

/// A random direction that a tensor may move in: a metric stays >= 0, a full one symmetric.
std::vector<double> direction(const std::string& name, const Tensor& x, const Options& how,
                              Normal& draw) {
  std::vector<double> u(std::size_t(x.view().count()));
  for (double& at : u) at = draw();
  if (name != "metric") return u;
  const auto m = numbers(x);
  if (!is_full(how.metric)) {
    for (std::size_t i = 0; i < u.size(); ++i) u[i] *= m[i];
    return u;
  }
  const std::size_t D = std::size_t(x.view().shape[3]);
  const double size = largest(x) / double(D);
  for (std::size_t p = 0; p < u.size(); p += D * D) {
    for (std::size_t i = 0; i < D; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        const double both = size * (u[p + i * D + j] + u[p + j * D + i]) / 2;
        u[p + i * D + j] = u[p + j * D + i] = both;
      }
    }
  }
  return u;
}

/// Derivative of the loss along u by central differences, and by those to either side; x is put
/// back as it was.
struct Slope {
  double value = 0, magnitude = 0;
  double before = 0, after = 0;
};

Slope slope(Forward& forward, const Tensor& x, const std::vector<double>& u, double step) {
  const auto values = numbers(x);
  const std::vector<double> before(values.begin(), values.end());
  const auto moved = [&](double by) {
    for (std::size_t i = 0; i < u.size(); ++i) values[i] = before[i] + by * u[i];
    return forward.loss();
  };
  const Loss up = moved(step), down = moved(-step), here = moved(0);
  std::copy(before.begin(), before.end(), values.begin());
  return {.value = (up.value - down.value) / (2 * step),
          .magnitude = std::max(up.magnitude, down.magnitude),
          .before = (here.value - down.value) / step,
          .after = (up.value - here.value) / step};
}

struct Compared {
  double error = 0, tolerance = 0;
  double strain() const { return tolerance > 0 ? error / tolerance : error > 0 ? INFINITY : 0; }
};

/// The best agreement over the steps.
Compared compare(Forward& forward, const Tensor& x, const Tensor& gradient,
                 const std::vector<double>& u) {
  const auto g = numbers(gradient);
  double along = 0, square = 0, move = 0;
  for (std::size_t i = 0; i < u.size(); ++i) {
    along += g[i] * u[i];
    square += g[i] * g[i] * u[i] * u[i];
    move += u[i] * u[i];
  }
  if (move == 0) return {};
  std::optional<Compared> best;
  for (const double step : steps) {
    const Slope slope_here = slope(forward, x, u, step);
    Compared now;
    now.error = std::abs(slope_here.value - along);
    now.tolerance = relative_tolerance * std::max(std::abs(along), std::sqrt(square)) +
                    64 * epsilon(DType::f64) * slope_here.magnitude / step;
    if (std::isnan(now.error)) now.error = INFINITY;
    // A kink within the step (a score next to 0 under l1): the gradient lies between both sides.
    const auto [low, high] = std::minmax(slope_here.before, slope_here.after);
    if (step == kink_step) {
      now.error = std::min(now.error, std::max({0.0, low - along, along - high}));
    }
    if (!best || now.strain() < best->strain()) best = now;
    if (best->strain() <= 1) break;
  }
  return *best;
}

/// The same call with its metric, and the scale it found, as constants.
struct Frozen {
  Problem problem;
  Options how;
};

/// c P in place of P, and 1 in place of c: heads with scales of their own fit into one call. A P
/// that all sequences share is written out for each.
void absorb_scale(Frozen& constant, const Tensor& scale) {
  Tensor& shared = constant.problem.tensors["metric"];
  const std::int64_t D = shared.view().shape[3];
  const auto c = numbers(scale), P = numbers(shared);
  Tensor scaled(DType::f64, {scale.view().shape[0], scale.view().shape[1], D, D});
  const auto to = numbers(scaled);
  const std::size_t each = std::size_t(D * D);
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = c[i / each] * P[i % P.size()];
  shared = std::move(scaled);
  constant.how.scale = 1.0;
}

/// Nothing for dot, which has no metric, and for chunks, which `given` cannot hold.
std::optional<Frozen> frozen(const Problem& problem, const Options& how, const Tensors& exact) {
  const bool chunks = is_full(how.metric) && scope_of(how) == Scope::prefix;
  if (exact.count("metric") == 0 || chunks) return {};
  Frozen constant{.problem = converted(problem, DType::f64), .how = how};
  constant.problem.tensors["metric"] = Tensor::copy(exact.at("metric"), DType::f64);
  Given given{.extent = is_full(how.metric) ? Extent::full : Extent::diagonal};
  std::visit(
      [&](const auto& metric) {
        if constexpr (requires { metric.form; }) given.form = metric.form;
      },
      how.metric);
  constant.how.metric = given;
  constant.how.metric_grad = MetricGrad::standard;
  if (exact.count("scale") > 0) absorb_scale(constant, exact.at("scale"));
  return constant;
}

bool is_through(const Options& how) {
  return how.metric_grad == MetricGrad::standard ? std::holds_alternative<KeyCovariance>(how.metric)
                                                 : how.metric_grad == MetricGrad::through;
}

/// What differences of an input say: the call as it is, the call with a constant metric, or
/// nothing.
struct Plan {
  enum class Kind { live, still, zero, skip } kind = Kind::live;
  std::string note;
};

Plan plan_for(const std::string& name, const Options& how, const std::optional<Frozen>& constant) {
  using Kind = Plan::Kind;
  const bool detached = is_estimated(how.metric) && !is_through(how);
  const bool matched = std::holds_alternative<MatchDot>(how.scale);
  const bool covariance = std::holds_alternative<KeyCovariance>(how.metric);
  if (name == "metric") {
    if (matched) return {Kind::skip, "--scale auto has been absorbed into the metric"};
    return constant ? Plan{Kind::still, {}}
                    : Plan{Kind::skip, "its chunks cannot be handed in as given"};
  }
  if (detached && name == "v_prev") return {Kind::zero, {}};
  if (matched && !detached && covariance && name == "k") {
    return {Kind::skip, "it follows the estimate but not the scale that --scale auto found"};
  }
  if (constant && (detached || matched)) return {Kind::still, {}};
  if (detached && name == "k")
    return {Kind::skip, "the detached chunks cannot be handed in as given"};
  return {};
}

}  // namespace

std::vector<Finding> difference_findings(const Problem& problem, const Options& how,
                                         Executor& threads, std::uint64_t seed) {
  Options ref = how;
  ref.backend = Backend::ref;
  const Tensors exact = answers(problem, ref, threads);
  const auto constant = frozen(problem, ref, exact);
  Forward live(problem, ref, threads);
  std::optional<Forward> still;
  if (constant) still.emplace(constant->problem, constant->how, threads);
  Normal draw(seed + 1);
  std::vector<Finding> findings;
  for (const char* name : {"q", "k", "v", "v_prev", "key_bias", "metric"}) {
    const std::string gradient = std::string("d") + name;
    if (exact.count(gradient) == 0) continue;
    const Plan plan = plan_for(name, ref, constant);
    Finding finding{.name = gradient, .against = "finite differences", .note = plan.note};
    if (plan.kind == Plan::Kind::zero) {
      finding.error = largest(exact.at(gradient));
      finding.passed = finding.error == 0;
    } else if (plan.kind != Plan::Kind::skip) {
      const bool hold = plan.kind == Plan::Kind::still;
      const Tensor& x = (hold ? constant->problem : problem).tensors.at(name);
      Compared furthest;
      for (int i = 0; i < directions; ++i) {
        const auto u = direction(name, x, ref, draw);
        const Compared now = compare(hold ? *still : live, x, exact.at(gradient), u);
        if (i == 0 || now.strain() > furthest.strain()) furthest = now;
      }
      finding.error = furthest.error;
      finding.tolerance = furthest.tolerance;
      finding.passed = furthest.strain() <= 1;
    }
    findings.push_back(finding);
  }
  return findings;
}

}  // namespace foci::cli
