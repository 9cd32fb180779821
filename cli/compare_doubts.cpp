// SPDX-License-Identifier: Apache-2.0
// Seeds, budget, steps and losses of a comparison in words.
#include "cli/compare_doubts.hpp"

#include "cli/compare_plan.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <cmath>
#include <vector>

namespace foci::cli {
namespace {

constexpr double least_budget = 1800;
constexpr std::size_t least_points = 20;  // of a curve, to speak of its end
constexpr double falls = 0.02;            // of a loss, that is worth telling
constexpr double most_runs = 0.75;
constexpr double most_epochs = 20;  // after which a loss falls by learning samples by heart
constexpr double many_epochs = 30, few_samples = 2000;

double mean_of(const Json& values, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += values[i].get<double>();
  return sum / double(end - begin);
}

/// -1 where it is none.
double number_in(const Json& json, const char* name) {
  const Json value = json.is_object() ? json.value(name, Json()) : Json();
  return value.is_number() ? value.get<double>() : -1;
}

}  // namespace

std::string demonstration_reason(std::size_t seeds, std::size_t enough, double budget,
                                 bool trains) {
  std::vector<std::string> reasons;
  if (seeds < enough) {
    reasons.push_back(fmt::format("{} seed{}, where {} are the least{}", seeds,
                                  seeds == 1 ? "" : "s", enough,
                                  trains ? fmt::format(" (--seeds {})", enough) : ""));
  }
  if (budget > 0 && budget < least_budget) {
    const std::string least = duration_text(least_budget);
    reasons.push_back(fmt::format("a budget of {}, where {} is the least (--budget {})",
                                  duration_text(budget), least, least));
  }
  return listed(reasons, ", and ");
}

std::string steps_text(const Json& facts) {
  const Json steps = facts.value("steps", Json()), epochs = facts.value("epochs", Json());
  if (!steps.is_number() || steps.get<std::int64_t>() <= 0) return "";
  std::string text = fmt::format("{} steps each", steps.get<std::int64_t>());
  if (!epochs.is_number()) return text;
  const double count = epochs.get<double>();
  return text + (count < 10 ? fmt::format(" ({:.2g} epochs)", count)
                            : fmt::format(" ({:.0f} epochs)", count));
}

Json epochs_json(std::int64_t steps, double batch, const Json& train) {
  if (!train.is_number() || !(train.get<double>() > 0) || steps <= 0) return {};
  return double(steps) * batch / train.get<double>();
}

Json still_falling(const Comparison& comparison) {
  const double epochs = number_in(comparison.facts, "epochs");
  if (epochs > most_epochs) return {};
  std::size_t runs = 0, lower = 0;
  double fall = 0;
  for (const ComparedRun& run : comparison.runs) {
    const Json losses = run.curve.value("loss", Json::array());
    if (run.state.state != "done" || losses.size() < least_points) continue;
    const std::size_t end = losses.size(), fifth = end / 5;
    const double before = mean_of(losses, end - 2 * fifth, end - fifth);
    const double change = (before - mean_of(losses, end - fifth, end)) / std::abs(before);
    if (!std::isfinite(change)) continue;
    ++runs;
    fall += change;
    if (change > 0) ++lower;
  }
  if (runs == 0 || fall / double(runs) < falls || double(lower) < most_runs * double(runs))
    return {};
  return {{"name", "loss-falls"},
          {"means", fmt::format("the losses still fell when training ended: by {:.0f} % over its "
                                "last fifth",
                                100 * fall / double(runs))},
          {"do", "train longer, --budget or --steps: what learns slower may come out ahead"}};
}

Json known_by_heart(const Comparison& comparison) {
  const double epochs = number_in(comparison.facts, "epochs");
  const Json data = comparison.facts.is_object() ? comparison.facts.value("data", Json()) : Json();
  const double samples = number_in(data, "train");
  if (epochs <= many_epochs || samples < 0 || samples >= few_samples) return {};
  return {
      {"name", "many-epochs"},
      {"means", fmt::format("runs went {:.0f} times over {:.0f} samples: what they have learned "
                            "by heart says little of others",
                            epochs, samples)},
      {"do", "more samples, or fewer --steps"}};
}

}  // namespace foci::cli
