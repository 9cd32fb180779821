// SPDX-License-Identifier: Apache-2.0
// Records of an attack: every share by its name, and what makes it doubtful.
#include "cli/torch/attack_records.hpp"

#include <ATen/TensorOperators.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::cli {

double share_of(const at::Tensor& flags) { return flags.to(at::kDouble).mean().item<double>(); }

std::vector<std::int64_t> fooled_alone(const Judged& judged) {
  std::vector<std::int64_t> alone;
  for (const attack::Outcome& arm : judged.arms) {
    at::Tensor by_it = arm.by.ge(0);
    for (const attack::Outcome& other : judged.arms) {
      if (&other != &arm) by_it = by_it.logical_and(other.by.lt(0));
    }
    alone.push_back(by_it.sum().item<std::int64_t>());
  }
  return alone;
}

const Judged& telling(const std::vector<Judged>& judged) {
  const double half = share_of(judged[0].arms[0].clean) / 2;
  return *std::min_element(judged.begin(), judged.end(), [&](const Judged& a, const Judged& b) {
    return std::abs(a.accuracy - half) < std::abs(b.accuracy - half);
  });
}

namespace {

void add_new(std::vector<RecordFlag>& flags, const std::vector<RecordFlag>& more) {
  for (const RecordFlag& flag : more) {
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) flags.push_back(flag);
  }
}

/// Of every way to differentiate; what all of them raise alike is said once, the rest with the
/// name of the way.
std::vector<RecordFlag> gradient_doubts(const AttackPlan& plan, const Attacked& subject,
                                        const std::vector<Judged>& judged) {
  attack::Options options = plan.options;
  options.eps = telling(judged).reach.eps;
  options.goals = at::Tensor();
  std::vector<std::pair<std::string, std::vector<RecordFlag>>> by_arm;
  for (const Arm& arm : subject.arms) {
    if (arm.surrogate) continue;
    by_arm.emplace_back(
        arm.name, attack::doubts(arm.model, subject.images, subject.labels, options, plan.check));
  }
  std::vector<RecordFlag> flags;
  for (const auto& [name, own] : by_arm) {
    for (RecordFlag flag : own) {
      const bool common = std::all_of(by_arm.begin(), by_arm.end(), [&](const auto& arm) {
        return std::find(arm.second.begin(), arm.second.end(), flag) != arm.second.end();
      });
      if (!common) flag.means = name + ": " + flag.means;
      add_new(flags, {flag});
    }
  }
  return flags;
}

std::vector<RecordFlag> doubts_of(const AttackPlan& plan, const Attacked& subject,
                                  const std::vector<Judged>& judged) {
  std::vector<RecordFlag> flags = gradient_doubts(plan, subject, judged);
  const bool aims = std::any_of(plan.attacks.begin(), plan.attacks.end(), [](const auto& attack) {
    return attack::name_of(attack).ends_with("-t");
  });
  if (aims && !plan.options.goals.defined() && subject.classes < 10) {
    flags.push_back({"few-classes",
                     fmt::format("{} classes: apgd-t and fab-t have {} targets rather than 9",
                                 subject.classes, subject.classes - 1),
                     "nothing; it is less than AutoAttack's usual"});
  }
  add_new(flags, attack::doubts(plan.attacks, plan.options.norm));
  return flags;
}

/// "robust linf 8/255"; with a goal, where more withstand, "robust linf 8/255 goal least".
std::string named(const AttackPlan& plan, const std::string& name) {
  return plan.goal.empty() ? name : name + " goal " + plan.goal;
}

/// Shares by name: "robust linf 8/255", "robust linf 8/255 through", "robust linf 8/255 apgd-ce".
train::Scores scores_of(const AttackPlan& plan, const Attacked& subject,
                        const std::vector<Judged>& judged) {
  train::Scores scores{{named(plan, "clean"), share_of(judged[0].arms[0].clean)},
                       {"count", double(subject.pixels.labels.size(0))}};
  for (const Judged& j : judged) {
    const std::string name = named(plan, "robust " + j.reach.text);
    scores[name] = j.accuracy;
    for (std::size_t a = 0; a < j.arms.size(); ++a) {
      const Arm& arm = subject.arms[a];
      const std::string own = name + (arm.name.empty() ? "" : " " + arm.name);
      scores[own] = arm.name.empty() ? j.accuracy : share_of(j.arms[a].robust);
      for (std::size_t i = 0; i < arm.attacks.size(); ++i)
        scores[fmt::format("{} {}. {}", own, i + 1, attack::name_of(arm.attacks[i]))] =
            j.arms[a].accuracies[i];
    }
  }
  return scores;
}

}  // namespace

std::vector<Record> attack_records(const Measurement& what, const AttackPlan& plan,
                                   const Attacked& subject, const std::vector<Judged>& judged) {
  const std::vector<RecordFlag> common = doubts_of(plan, subject, judged);
  std::vector<Record> records = records_of(what, scores_of(plan, subject, judged));
  for (Record& record : records) {
    record.unit = "share";
    record.spread = std::sqrt(record.value * (1 - record.value) / double(record.n));
    record.seed = plan.options.seed;
    if (record.name == named(plan, "clean")) continue;
    record.flags.insert(record.flags.end(), common.begin(), common.end());
    for (const Judged& j : judged) {
      const std::string name = named(plan, "robust " + j.reach.text);
      if (record.name != name && !record.name.starts_with(name + " ")) continue;
      for (std::size_t a = 0; a < j.arms.size(); ++a)
        add_new(record.flags, attack::doubts(j.arms[a], subject.arms[a].attacks));
    }
  }
  return records;
}

std::vector<RecordFlag> all_flags(const std::vector<Record>& records) {
  std::vector<RecordFlag> flags;
  for (const Record& record : records) add_new(flags, record.flags);
  return flags;
}

Json curve_json(const Attacked& subject, const std::vector<Judged>& judged) {
  Json points = Json::array();
  for (const Judged& j : judged) {
    Json point{{"eps", j.reach.eps}, {"text", j.reach.text}, {"robust", j.accuracy}};
    const std::vector<std::int64_t> alone = fooled_alone(j);
    for (std::size_t a = 0; a < j.arms.size(); ++a) {
      const std::string& name = subject.arms[a].name;
      Json after = Json::object();
      for (std::size_t i = 0; i < j.arms[a].accuracies.size(); ++i)
        after[fmt::format("{}. {}", i + 1, attack::name_of(subject.arms[a].attacks[i]))] =
            j.arms[a].accuracies[i];
      point["after"][name.empty() ? "own" : name] = after;
      if (j.arms.size() > 1) point["fooled_alone"][name] = alone[a];
    }
    points.push_back(point);
  }
  return {{"clean", share_of(judged[0].arms[0].clean)}, {"curve", points}};
}

}  // namespace foci::cli
