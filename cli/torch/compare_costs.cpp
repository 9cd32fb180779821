// SPDX-License-Identifier: Apache-2.0
// Costs by rules of thumb over a measured rate, and a plan that has room in its budget.
#include "cli/torch/compare_costs.hpp"

#include "cli/misuse.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/records.hpp"

#include <foci/data.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace foci::cli {
namespace {

constexpr double start_seconds = 1.5;    // of a run's processes, all together
constexpr double steps_of_a_check = 60;  // with each image that attacks are doubted by
constexpr double slow = 0.5;             // a mechanism's rate, over the baseline's, to be safe with
constexpr std::int64_t fitting_steps = 50;  // that a command which is said to fit has

/// Of the budget; of a text or a series nobody knows beforehand how long judging takes.
double share_of_budget(const ComparePlan& plan) { return plan.task == "images" ? 0.95 : 0.75; }

void add(CompareCosts& to, const CompareCosts& more, double times) {
  to.starting += times * more.starting;
  to.judging += times * more.judging;
  to.attacks += times * more.attacks;
  to.corruptions += times * more.corruptions;
}

/// The best of all turns: whatever else the machine does makes a turn slower, never faster.
double best_rate(const CompareTiming& timing, const std::string& name) {
  const auto found = timing.speeds.find(name);
  if (found == timing.speeds.end() || found->second.per_second.empty()) return 0;
  const auto& turns = found->second.per_second;
  return *std::max_element(turns.begin(), turns.end());
}

std::int64_t turns_timed(const CompareTiming& timing, const ComparePlan& plan) {
  std::int64_t turns = 0;
  for (const Contender& contender : plan.contenders) {
    const auto found = timing.speeds.find(contender.name);
    if (found != timing.speeds.end()) turns += std::int64_t(found->second.per_second.size());
  }
  return turns;
}

double parts(const Words& words, const char* flag) {
  return words.at(flag) == "none" ? 0.0 : double(split(words.at(flag), ',').size());
}

std::string too_small(const ComparePlan& plan) {
  return fmt::format("--budget {} is too small for {} runs", plan.words.at("budget"),
                     plan.contenders.size() * plan.seeds.size());
}

/// Takes that share of a flag's number, though not below `least`; the share that is still to go
/// stays.
void shrink(Words& words, const char* flag, double now, double least, double& share) {
  const double fewer = std::max(std::min(now, least), std::floor(now * share));
  if (share >= 1 || fewer >= now) return;
  words[flag] = fmt::format("{:.0f}", fewer);
  share = std::min(1.0, share * now / fewer);
}

/// 437 -> "7m30s"
std::string round_budget(double seconds) {
  const double grain = seconds < 120 ? 10 : seconds < 600 ? 30 : seconds < 3600 ? 60 : 300;
  return duration_text(std::ceil(seconds / grain) * grain);
}

}  // namespace

std::string told(const CompareCosts& costs) {
  std::vector<std::string> all;
  const auto part = [&](double seconds, const char* name) {
    if (seconds >= 1) all.push_back(fmt::format("{} {}", duration_text(seconds), name));
  };
  part(costs.timing, "timing");
  part(costs.training, "training");
  part(costs.attacks, "attacks");
  part(costs.corruptions, "corruptions");
  part(costs.judging, "judging");
  part(costs.starting, "starting");
  return listed(all);
}

CompareReckoning::CompareReckoning(const ComparePlan& plan, const CompareSite& site, int jobs)
    : plan_(plan), jobs_(jobs) {
  const Words words = with_defaults(plan.task, train_words(plan, site, plan.contenders[0], 0));
  batch_ = double(to_count(words.at("batch")) * to_count(words.at("accumulate")));
  if (plan.task == "images") judged_ = data::open_images(site.data, split_of(plan.split)).size();
}

/// 0 means all.
double CompareReckoning::count(const Words& words, const char* flag) const {
  const std::int64_t asked = to_count(words.at(flag));
  return double(asked == 0 ? judged_ : std::min(asked, judged_));
}

/// Besides training, on its share of the machine: passes forward take about a third of a step's
/// time, an attack's step a whole one.
CompareCosts CompareReckoning::costs_of_a_run(const Words& words, double rate) const {
  if (plan_.task != "images") return {};
  const double corrupted = count(words, "corrupt-samples");
  const double passes =
      parts(words, "corruptions") * parts(words, "severity") * (corrupted + 100) + corrupted;
  const double attacked = count(words, "attack-samples") * parts(words, "eps");
  const double attacks = parts(words, "attack");
  const double steps = attacked * double(to_count(words.at("iterations"))) * (attacks > 0 ? 1 : 0);
  const double queries = attacked * double(to_count(words.at("queries"))) * (attacks > 1 ? 0.5 : 0);
  const double checks =
      std::min(double(to_count(words.at("check"))), count(words, "attack-samples"));
  const double doubts = attacks > 0 ? checks * steps_of_a_check : 0;
  return {.starting = start_seconds,
          .judging = count(words, "judge-samples") / 2.5 / rate,
          .attacks = (steps + queries / 2.5 + doubts) / rate,
          .corruptions = passes / 2.5 / rate};
}

CompareReckoning::Guess CompareReckoning::at_best() const {
  return {.words = plan_.words, .budget = plan_.budget, .turn = least_timed_seconds};
}

CompareEstimate CompareReckoning::estimate(const CompareTiming& timing) const {
  return estimate(timing, at_best());
}

CompareEstimate CompareReckoning::estimate(const CompareTiming& timing, const Guess& guess) const {
  const double seeds = double(plan_.seeds.size());
  const double baseline = best_rate(timing, plan_.contenders[0].name);
  const double missing =
      seeds * double(plan_.contenders.size()) - double(turns_timed(timing, plan_));
  CompareEstimate found;
  found.costs.timing = timing.seconds + std::max(0.0, missing) * guess.turn;
  for (const Contender& contender : plan_.contenders) {
    // One that seems faster than the baseline is not relied on to be.
    const double own = best_rate(timing, contender.name);
    const double share = own > 0 && baseline > 0              ? std::min(1.0, own / baseline)
                         : &contender == &plan_.contenders[0] ? 1
                                                              : guess.unknown;
    const double rate = timing.together * share;
    found.a_step += seeds * batch_ / rate / jobs_;
    add(found.costs, costs_of_a_run(guess.words, rate), seeds / jobs_);
  }
  const double left = guess.budget * share_of_budget(plan_) - found.costs.all();
  found.steps = std::int64_t(std::floor(std::clamp(left / found.a_step, -1.0, 1e9)));
  return found;
}

/// Fewer samples where they take most of the budget, and a larger budget where that is not enough.
CompareReckoning::Guess CompareReckoning::fitting(const CompareTiming& timing) const {
  Guess guess = at_best();
  guess.unknown = slow;
  const std::int64_t turns = turns_timed(timing, plan_) + 1;
  guess.turn = std::max(2 * least_timed_seconds, timing.seconds / double(turns));
  CompareEstimate now = estimate(timing, guess);
  const double room =
      std::max(1.0, guess.budget * share_of_budget(plan_) - now.costs.starting - now.costs.timing);
  const auto share = [&](double part, double of) { return part * room / std::max(of, 1e-9); };
  if (plan_.task == "images") {
    double attacks = share(0.4, now.costs.attacks);
    shrink(guess.words, "attack-samples", count(guess.words, "attack-samples"), 16, attacks);
    double queries = attacks, checks = attacks;
    if (guess.words["check"] != "0")
      shrink(guess.words, "check", count(guess.words, "check"), 4, checks);
    shrink(guess.words, "iterations", double(to_count(guess.words["iterations"])), 5, attacks);
    shrink(guess.words, "queries", double(to_count(guess.words["queries"])), 50, queries);
    double corruptions = share(0.15, now.costs.corruptions),
           judging = share(0.15, now.costs.judging);
    shrink(guess.words, "corrupt-samples", count(guess.words, "corrupt-samples"), 50, corruptions);
    shrink(guess.words, "judge-samples", count(guess.words, "judge-samples"), 100, judging);
    now = estimate(timing, guess);
  }
  if (now.steps < fitting_steps) {
    guess.budget = (now.costs.all() + double(fitting_steps) * now.a_step) / share_of_budget(plan_);
    guess.words["budget"] = round_budget(guess.budget);
  }
  return guess;
}

void CompareReckoning::refuse(const CompareTiming& timing) const {
  CompareEstimate least = estimate(timing);
  least.costs.training = double(least_steps) * least.a_step;
  const double needs = least.costs.all() / share_of_budget(plan_);
  const Guess fits = fitting(timing);
  Words words = plan_.typed;
  for (const auto& [flag, value] : fits.words) {
    if (plan_.words.at(flag) != value) words[flag] = value;
  }
  const bool model = plan_.task == "images" && fits.budget > plan_.budget;
  throw Misuse(fmt::format("{}: {} steps each need about {}", too_small(plan_), least_steps,
                           duration_text(std::ceil(needs / 10) * 10)),
               fmt::format("of that {}{}; this fits: {}", told(least.costs),
                           model ? "; a larger --model patch= takes less of everything" : "",
                           command_text(plan_.called, words)));
}

void CompareReckoning::check() const {
  const double runs = double(plan_.contenders.size() * plan_.seeds.size());
  const double timing = plan_.task == "images" ? runs * least_timed_seconds : 0;
  const double starting = plan_.task == "images" ? runs * start_seconds / jobs_ : 0;
  const double least = (timing + starting) / share_of_budget(plan_);
  if (plan_.budget >= least) return;
  throw Misuse(fmt::format("{}: to time and start them takes {} alone", too_small(plan_),
                           duration_text(std::ceil(least))),
               "minutes for a look, an hour for a decision");
}

}  // namespace foci::cli
