// SPDX-License-Identifier: Apache-2.0
// foci attack: every arm at every size of the ball, the worst case, flags, and the Records of it.
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/torch/attack_folder.hpp"
#include "cli/torch/records.hpp"
#include "cli/torch/run.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>
#include <foci/random.hpp>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::cli {
namespace {

using attack::Outcome;

double share_of(const at::Tensor& flags) { return flags.to(at::kFloat).mean().item<double>(); }

/// The class each image is to become.
at::Tensor goals_of(const std::string& word, const Attacked& subject, std::uint64_t seed,
                    std::int64_t batch) {
  const auto& [images, labels, samples] = subject.pixels;
  if (word == "random") {
    at::Tensor goals = at::empty(labels.sizes(), at::kLong);
    for (std::int64_t i = 0; i < labels.size(0); ++i) {
      data::Random random(seed, 0x90a1, std::uint64_t(i));
      goals[i] = (labels[i].item<std::int64_t>() + 1 + random.below(subject.classes - 1)) %
                 subject.classes;
    }
    return goals.to(labels.device());
  }
  if (word == "second" || word == "least") {
    const at::NoGradGuard without;
    std::vector<at::Tensor> parts;
    for (std::int64_t i = 0; i < images.size(0); i += batch) {
      const at::Tensor z = subject.model(images.slice(0, i, i + batch));
      parts.push_back(word == "least" ? z.argmin(1)
                                      : std::get<1>(z.topk(2, 1)).select(1, 1).contiguous());
    }
    return at::cat(parts);
  }
  const bool digits = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
  if (!digits || word.size() > 9 || to_count(word) >= subject.classes) {
    throw Misuse(
        fmt::format("--goal '{}' is no class; the model has {}", shown(word), subject.classes),
        "second, least, random, or a number that counts from 0");
  }
  return at::full_like(labels, to_count(word));
}

/// What identifies an attack: flags that may change its results, and the weights.
Json told_json(const Attack& verb, const Attacked& subject) {
  Json flags = Json::object();
  for (const auto& [flag, value] : verb.words) {
    static const std::vector<std::string> beside = {"json",  "quiet", "threads", "device",
                                                    "sheet", "check", "out"};
    if (std::find(beside.begin(), beside.end(), flag) == beside.end()) flags[flag] = value;
  }
  return {{"run", verb.run},
          {"flags", flags},
          {"weights_sha256", data::fingerprint_of(subject.weights).sha256},
          {"images", subject.pixels.images.size(0)}};
}

/// Over all arms; an image that fooled one of them is judged again by the run's own model.
void take_worst(Judged& j, const Attacked& subject, const attack::Options& options) {
  j.robust = j.arms[0].clean.clone();
  j.images = subject.pixels.images.clone();
  for (const Outcome& arm : j.arms) {
    const at::Tensor hit = arm.by.ge(0).logical_and(j.robust).nonzero().squeeze(1);
    if (hit.size(0) == 0) continue;
    const at::Tensor images = arm.images.index_select(0, hit);
    const at::Tensor right = attack::correct(
        subject.model, images, subject.pixels.labels.index_select(0, hit), options.batch);
    const at::Tensor holds = right.logical_not().nonzero().squeeze(1);
    const at::Tensor where = hit.index_select(0, holds);
    j.robust.index_fill_(0, where, false);
    j.images.index_copy_(0, where, images.index_select(0, holds));
  }
  j.accuracy = share_of(j.robust);
}

std::vector<Judged> judge_all(const AttackPlan& plan, const Attacked& subject,
                              const AttackFolder& folder, Show show) {
  std::vector<Judged> all(plan.reaches.size());
  for (std::size_t e = 0; e < all.size(); ++e) all[e].reach = plan.reaches[e];
  std::int64_t total = 0, done = 0;
  for (const Arm& arm : subject.arms) total += std::int64_t(arm.attacks.size() * all.size());
  Progress progress("attack", "attacks", show);
  for (std::size_t a = 0; a < subject.arms.size(); ++a) {
    const Arm& arm = subject.arms[a];
    attack::Options options = plan.options;
    options.surrogate = arm.surrogate;
    for (std::size_t e = 0; e < all.size(); ++e) {
      options.eps = all[e].reach.eps;
      const auto heard = [&](const attack::Step& step) {
        progress.now(fmt::format("{}{}{} {}, batch {} of {}, {} images still right", arm.name,
                                 arm.name.empty() ? "" : " ", all[e].reach.text,
                                 attack::name_of(arm.attacks[step.attack]), step.batch + 1,
                                 step.batches, step.robust));
        progress.at(done + std::int64_t(step.attack), total);
      };
      const Outcome* known = e == 0 ? nullptr : &all[e - 1].arms[a];
      all[e].arms.push_back(attack::run(
          arm.model, subject.pixels.images, subject.pixels.labels, arm.attacks, options,
          folder.journal(fmt::format("{}{}", arm.name.empty() ? "own" : arm.name, e), heard),
          known));
      done += std::int64_t(arm.attacks.size());
      progress.at(done, total);
    }
  }
  for (Judged& j : all) take_worst(j, subject, plan.options);
  return all;
}

std::vector<RecordFlag> doubts_of(const AttackPlan& plan, const Attacked& subject,
                                  const std::vector<Judged>& judged) {
  std::vector<RecordFlag> flags;
  if (plan.check > 0) {
    attack::Options options = plan.options;
    options.eps = judged[0].reach.eps;
    flags = attack::doubts(subject.arms[0].model, subject.pixels.images, subject.pixels.labels,
                           options, plan.check);
  }
  const bool aims = std::any_of(plan.attacks.begin(), plan.attacks.end(), [](const auto& attack) {
    return attack::name_of(attack).ends_with("-t");
  });
  if (aims && subject.classes < 10) {
    flags.push_back({"few-classes",
                     fmt::format("{} classes: apgd-t and fab-t have {} targets rather than 9",
                                 subject.classes, subject.classes - 1),
                     "nothing; it is less than AutoAttack's usual"});
  }
  return flags;
}

/// Shares by name: "robust linf 8/255", "robust linf 8/255 through", "robust linf 8/255 apgd-ce".
train::Scores scores_of(const Attacked& subject, const std::vector<Judged>& judged) {
  train::Scores scores{{"clean", share_of(judged[0].arms[0].clean)},
                       {"count", double(subject.pixels.labels.size(0))}};
  for (const Judged& j : judged) {
    const std::string name = "robust " + j.reach.text;
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

/// Shares with their error, and the flags that belong to each.
std::vector<Record> attack_records(const Measurement& what, const AttackPlan& plan,
                                   const Attacked& subject, const std::vector<Judged>& judged) {
  const std::vector<RecordFlag> common = doubts_of(plan, subject, judged);
  std::vector<Record> records = records_of(what, scores_of(subject, judged));
  for (Record& record : records) {
    record.unit = "share";
    record.spread = std::sqrt(record.value * (1 - record.value) / double(record.n));
    record.seed = plan.options.seed;
    if (record.name == "clean") continue;
    record.flags.insert(record.flags.end(), common.begin(), common.end());
    for (const Judged& j : judged) {
      const std::string name = "robust " + j.reach.text;
      if (record.name != name && !record.name.starts_with(name + " ")) continue;
      for (std::size_t a = 0; a < j.arms.size(); ++a) {
        for (const RecordFlag& flag : attack::doubts(j.arms[a], subject.arms[a].attacks)) {
          const auto known = std::find(record.flags.begin(), record.flags.end(), flag);
          if (known == record.flags.end()) record.flags.push_back(flag);
        }
      }
    }
  }
  return records;
}

Json curve_json(const Attacked& subject, const std::vector<Judged>& judged) {
  Json points = Json::array();
  for (const Judged& j : judged) {
    Json point{{"eps", j.reach.eps}, {"text", j.reach.text}, {"robust", j.accuracy}};
    for (std::size_t a = 0; a < j.arms.size(); ++a) {
      Json after = Json::object();
      for (std::size_t i = 0; i < j.arms[a].accuracies.size(); ++i)
        after[fmt::format("{}. {}", i + 1, attack::name_of(subject.arms[a].attacks[i]))] =
            j.arms[a].accuracies[i];
      point["after"][subject.arms[a].name.empty() ? "own" : subject.arms[a].name] = after;
    }
    points.push_back(point);
  }
  return {{"clean", share_of(judged[0].arms[0].clean)}, {"curve", points}};
}

/// All flags of the Records, each once.
std::vector<RecordFlag> all_flags(const std::vector<Record>& records) {
  std::vector<RecordFlag> flags;
  for (const Record& record : records) {
    for (const RecordFlag& flag : record.flags) {
      if (std::find(flags.begin(), flags.end(), flag) == flags.end()) flags.push_back(flag);
    }
  }
  return flags;
}

void print_table(const Attacked& subject, const std::vector<Judged>& judged) {
  std::vector<std::string> head = {"eps", "robust"};
  for (const Arm& arm : subject.arms) {
    for (const attack::Attack& attack : arm.attacks)
      head.push_back((arm.name.empty() ? "" : arm.name + " ") + attack::name_of(attack));
  }
  const auto percent = [](double share) { return fmt::format("{:.2f} %", 100 * share); };
  Table table(head);
  table.add({"0", percent(share_of(judged[0].arms[0].clean))});
  for (const Judged& j : judged) {
    std::vector<std::string> row = {j.reach.text, percent(j.accuracy)};
    for (const Outcome& arm : j.arms) {
      for (const double share : arm.accuracies) row.push_back(percent(share));
    }
    table.add(row);
  }
  table.print();
}

}  // namespace

int run_torch(const Attack& verb) {
  AttackPlan plan = attack_plan(verb.words, verb.common);
  const RunConfig config = read_config(verb.run);
  Attacked subject = open_attacked(verb, config, plan);
  const auto own = verb.words.find("out");
  const AttackFolder folder(own == verb.words.end() ? verb.run + "/attack" : own->second,
                            told_json(verb, subject));
  if (verb.common.cuda) {
    subject.pixels.images = subject.pixels.images.to(at::kCUDA);
    subject.pixels.labels = subject.pixels.labels.to(at::kCUDA);
  }
  at::manual_seed(verb.common.seed);
  if (verb.words.count("goal") > 0) {
    plan.options.goals =
        goals_of(verb.words.at("goal"), subject, verb.common.seed, plan.options.batch);
  }
  const bool shows = !verb.common.json && !verb.common.quiet;
  const auto judged = judge_all(plan, subject, folder, shows ? Show::progress : Show::nothing);
  const Json curve = curve_json(subject, judged);
  folder.write(subject, judged, curve, plan.sheet);
  const std::string machine = verb.common.cuda ? gpu_machine_text() : machine_text();
  const auto records =
      attack_records({config.words, machine, command_text("attack " + verb.run, verb.words)}, plan,
                     subject, judged);
  keep_records(verb.run, records);
  const auto flags = all_flags(records);
  if (verb.common.json) {
    Json list = Json::array();
    for (const RecordFlag& flag : flags)
      list.push_back({{"name", flag.name}, {"means", flag.means}, {"do", flag.remedy}});
    Json result = curve;
    result.update({{"run", verb.run},
                   {"out", folder.path()},
                   {"suite", plan.suite},
                   {"count", subject.pixels.labels.size(0)},
                   {"flags", list},
                   {"records", json_of(records)}});
    print_json(result);
    return 0;
  }
  print_table(subject, judged);
  if (verb.common.quiet) return 0;
  for (const RecordFlag& flag : flags)
    fmt::print("doubt: {}: {}; {}\n", flag.name, flag.means, flag.remedy);
  fmt::print("{} images; results in {}\n", subject.pixels.labels.size(0), folder.path());
  return 0;
}

}  // namespace foci::cli
