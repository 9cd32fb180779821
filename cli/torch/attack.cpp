// SPDX-License-Identifier: Apache-2.0
// foci attack: every arm at every size of the ball, the worst case, and what is said of it.
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/torch/attack_folder.hpp"
#include "cli/torch/attack_records.hpp"
#include "cli/torch/attack_stop.hpp"
#include "cli/torch/run.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>
#include <foci/random.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>

namespace foci::cli {
namespace {

using attack::Outcome;

/// The class but the image's own whose logit times `sign` is the largest.
at::Tensor other_class(const Attacked& subject, std::int64_t batch, double sign) {
  const at::NoGradGuard without;
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < subject.labels.size(0); i += batch) {
    const at::Tensor own = subject.labels.slice(0, i, i + batch).unsqueeze(1);
    const at::Tensor z = subject.model(subject.images.slice(0, i, i + batch)) * sign;
    parts.push_back(z.scatter(1, own, -std::numeric_limits<float>::infinity()).argmax(1));
  }
  return at::cat(parts);
}

/// The class each image is to become.
at::Tensor goals_of(const std::string& word, const Attacked& subject, std::uint64_t seed,
                    std::int64_t batch) {
  if (word == "second") return other_class(subject, batch, 1);
  if (word == "least") return other_class(subject, batch, -1);
  const at::Tensor& labels = subject.pixels.labels;
  if (word == "random") {
    at::Tensor goals = at::empty(labels.sizes(), at::kLong);
    for (std::int64_t i = 0; i < labels.size(0); ++i) {
      data::Random random(seed, 0x90a1, std::uint64_t(i));
      goals[i] = (labels[i].item<std::int64_t>() + 1 + random.below(subject.classes - 1)) %
                 subject.classes;
    }
    return goals.to(subject.labels.device());
  }
  const bool digits = !word.empty() && word.find_first_not_of("0123456789") == word.npos;
  if (!digits || word.size() > 9 || to_count(word) >= subject.classes) {
    throw Misuse(
        fmt::format("--goal '{}' is no class; the model has {}", shown(word), subject.classes),
        "second, least, random, or a number that counts from 0");
  }
  return at::full_like(subject.labels, to_count(word));
}

/// Takes away the images that are of their goal's class and gives how many those were.
std::int64_t leave_out_reached(Attacked& subject, at::Tensor& goals) {
  const at::Tensor keep = goals.ne(subject.labels).nonzero().squeeze(1);
  const std::int64_t before = goals.size(0), reached = before - keep.size(0);
  if (reached == before)
    throw Misuse(fmt::format("all {} images are of the class that --goal names", before));
  if (reached == 0) return 0;
  const at::Tensor here = keep.to(at::kCPU);
  for (at::Tensor* t : {&subject.images, &subject.labels, &goals}) *t = t->index_select(0, keep);
  train::Pixels& p = subject.pixels;
  for (at::Tensor* t : {&p.images, &p.labels, &p.samples}) *t = t->index_select(0, here);
  return reached;
}

/// What identifies an attack: flags that may change its results, the weights and the data.
Json told_json(const Attack& verb, const Attacked& subject) {
  Json flags = Json::object();
  for (const auto& [flag, value] : verb.words) {
    static const std::vector<std::string> beside = {"json",  "quiet", "threads", "device",
                                                    "sheet", "check", "out"};
    if (std::find(beside.begin(), beside.end(), flag) == beside.end()) flags[flag] = value;
  }
  Json told{{"run", verb.run},
            {"flags", flags},
            {"weights_sha256", data::fingerprint_of(subject.weights).sha256},
            {"data_sha256", data::fingerprint_of(data_path(subject.words.at("data"))).sha256},
            {"images", subject.pixels.images.size(0)}};
  if (!subject.plain_weights.empty())
    told["plain_weights_sha256"] = data::fingerprint_of(subject.plain_weights).sha256;
  return told;
}

/// Over all arms; an image that fooled one of them is judged again by the run's own model.
void take_worst(Judged& j, const Attacked& subject, const attack::Options& options) {
  j.robust = j.arms[0].clean.clone();
  j.images = subject.pixels.images.clone();
  for (const Outcome& arm : j.arms) {
    const at::Tensor hit = arm.by.ge(0).logical_and(j.robust).nonzero().squeeze(1);
    if (hit.size(0) == 0) continue;
    const at::Tensor images = arm.images.index_select(0, hit);
    const at::Device device = subject.labels.device();
    const at::Tensor labels = subject.labels.index_select(0, hit.to(device));
    const at::Tensor right =
        attack::correct(subject.model, images.to(device), labels, options.batch);
    const at::Tensor holds = right.logical_not().to(at::kCPU).nonzero().squeeze(1);
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
          arm.model, subject.images, subject.labels, arm.attacks, options,
          folder.journal(fmt::format("{}{}", arm.name.empty() ? "own" : arm.name, e), heard),
          known));
      done += std::int64_t(arm.attacks.size());
      progress.at(done, total);
    }
  }
  for (Judged& j : all) take_worst(j, subject, plan.options);
  return all;
}

void print_table(const Attacked& subject, const std::vector<Judged>& judged) {
  std::vector<std::string> head = {"eps", "robust"};
  for (const Arm& arm : subject.arms) {
    for (const attack::Attack& attack : arm.attacks)
      head.push_back((arm.name.empty() ? "" : arm.name + " ") + attack::name_of(attack));
  }
  const bool several = subject.arms.size() > 1;
  for (const Arm& arm : subject.arms) {
    if (several) head.push_back("by " + arm.name + " alone");
  }
  const auto percent = [](double share) { return fmt::format("{:.2f} %", 100 * share); };
  Table table(head);
  table.add({"0", percent(share_of(judged[0].arms[0].clean))});
  for (const Judged& j : judged) {
    std::vector<std::string> row = {j.reach.text, percent(j.accuracy)};
    for (const Outcome& arm : j.arms) {
      for (const double share : arm.accuracies) row.push_back(percent(share));
    }
    for (const std::int64_t count : fooled_alone(j)) {
      if (several) row.push_back(std::to_string(count));
    }
    table.add(row);
  }
  table.print();
}

/// A call, and what it came to.
struct AttackCall {
  const Attack& verb;
  const AttackPlan& plan;
  const Attacked& subject;
  std::string out = {};
  std::int64_t left_out = 0;  ///< images of the class that is the goal
};

void print_result(const AttackCall& of, const std::vector<Judged>& judged,
                  const std::vector<Record>& records) {
  Json list = Json::array();
  for (const RecordFlag& flag : all_flags(records))
    list.push_back({{"name", flag.name}, {"means", flag.means}, {"do", flag.remedy}});
  Json result = curve_json(of.subject, judged);
  result.update({{"run", of.verb.run},
                 {"out", of.out},
                 {"suite", of.plan.suite},
                 {"count", of.subject.pixels.labels.size(0)},
                 {"of_the_goal", of.left_out},
                 {"checked", of.plan.check},
                 {"checked_at", telling(judged).reach.text},
                 {"flags", list},
                 {"records", json_of(records)}});
  print_json(result);
}

void print_words(const AttackCall& of, const std::vector<Judged>& judged,
                 const std::vector<Record>& records) {
  for (const RecordFlag& flag : all_flags(records))
    fmt::print("doubt: {}: {}; {}\n", flag.name, flag.means, flag.remedy);
  if (of.plan.check > 0) {
    fmt::print("doubts were looked for with up to {} images at {}\n", of.plan.check,
               telling(judged).reach.text);
  }
  if (of.left_out > 0) {
    fmt::print("{} more images are of the class that is the goal and were not counted\n",
               of.left_out);
  }
  fmt::print("{} images; results in {}\n", of.subject.pixels.labels.size(0), of.out);
}

/// The judging itself, which goes on where it was stopped and says where that is.
std::vector<Judged> judged_by(const AttackFolder& folder, const AttackCall& of) {
  const Common& common = of.verb.common;
  const bool shows = !common.json && !common.quiet;
  const std::string journal = folder.path() + "/journal";
  if (shows && folder.batches() > 0) {
    fmt::print(stderr, "{} batch{} done before {} taken from {}\n", folder.batches(),
               folder.batches() == 1 ? "" : "es", folder.batches() == 1 ? "is" : "are", journal);
    std::fflush(stderr);  // before hours of silence
  }
  std::optional<LastWord> last_word;
  if (!common.quiet) {
    last_word.emplace("foci: stopped; what was found stands in " + journal +
                      ", and the same command goes on from there");
  }
  return judge_all(of.plan, of.subject, folder, shows ? Show::progress : Show::nothing);
}

}  // namespace

int run_torch(const Attack& verb) {
  AttackPlan plan = attack_plan(verb.words, verb.common);
  const RunConfig config = read_config(verb.run);
  Attacked subject = open_attacked(verb, config, plan);
  const Json told = told_json(verb, subject);
  at::manual_seed(verb.common.seed);
  AttackCall of{verb, plan, subject};
  if (const auto goal = verb.words.find("goal"); goal != verb.words.end()) {
    plan.options.goals = goals_of(goal->second, subject, verb.common.seed, plan.options.batch);
    of.left_out = leave_out_reached(subject, plan.options.goals);
  }
  const auto own = verb.words.find("out");
  // Nothing is refused any more: what lies there would refuse the corrected command.
  const AttackFolder folder(own == verb.words.end() ? verb.run + "/attack" : own->second, told);
  of.out = folder.path();
  const std::vector<Judged> judged = judged_by(folder, of);
  const std::string machine = verb.common.cuda ? gpu_machine_text() : machine_text();
  auto records =
      attack_records({subject.words, machine, command_text("attack " + verb.run, verb.words)}, plan,
                     subject, judged);
  doubt_other_data(verb.run, config.words, subject.words, records);
  keep_records(verb.run, records);  // whatever becomes of files and pictures
  folder.write(subject, judged, curve_json(subject, judged), plan.sheet);
  if (verb.common.json) {
    print_result(of, judged, records);
    return 0;
  }
  print_table(subject, judged);
  if (!verb.common.quiet) print_words(of, judged, records);
  return 0;
}

}  // namespace foci::cli
