// SPDX-License-Identifier: Apache-2.0
// From the flags of foci attack to attacks, and from a run to models of pixels.
#include "cli/torch/attack_plan.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/tasks.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace foci::cli {
namespace {

using attack::Norm;

std::string word_or(const Words& words, const char* flag, const char* standard) {
  const auto found = words.find(flag);
  return found == words.end() ? standard : found->second;
}

int number_or(const Words& words, const char* flag, std::int64_t standard) {
  const auto found = words.find(flag);
  return int(found == words.end() ? standard : to_count(found->second));
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::optional<double> number_in(std::string_view text) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

Reach reach_of(const std::string& word, Norm norm, const std::string& norm_text) {
  const std::size_t slash = word.find('/');
  const auto above = number_in(std::string_view(word).substr(0, slash));
  const auto below =
      slash == word.npos ? std::optional(1.0) : number_in(std::string_view(word).substr(slash + 1));
  if (!above || !below || *below <= 0) {
    throw Misuse(fmt::format("--eps '{}' is no number", shown(word)),
                 "numbers with commas, under linf in 1/255: --eps 1,2,4,8");
  }
  if (*above < 0) throw Misuse(fmt::format("--eps {} is below 0", word));
  if (norm == Norm::linf && slash == word.npos)
    return {*above / 255, fmt::format("{} {}/255", norm_text, word)};
  return {*above / *below, fmt::format("{} {}", norm_text, word)};
}

void check_norm(const std::vector<attack::Attack>& attacks, Norm norm) {
  const auto is_cw = [](const attack::Attack& attack) {
    return std::holds_alternative<attack::CarliniWagner>(attack);
  };
  if (norm == Norm::l2 || std::none_of(attacks.begin(), attacks.end(), is_cw)) return;
  throw Misuse("cw measures in l2; the nearest under linf and l1 is apgd-dlr",
               "--norm l2, or another attack; foci help attack names all");
}

/// Flags that only some attacks hear, by the attack.
bool has_restarts(const attack::Attack& attack) {
  return std::holds_alternative<attack::Pgd>(attack) ||
         std::holds_alternative<attack::Apgd>(attack) ||
         std::holds_alternative<attack::Fab>(attack) ||
         std::holds_alternative<attack::Square>(attack);
}
bool has_targets(const attack::Attack& attack) { return attack::name_of(attack).ends_with("-t"); }

/// Refuses what would change nothing.
void check_heard(const Words& words, const std::vector<attack::Attack>& attacks) {
  const auto refuse = [&](const char* flag, const auto& hears, const std::string& who) {
    if (number_or(words, flag, 0) == 0 || std::any_of(attacks.begin(), attacks.end(), hears))
      return;
    throw Misuse(fmt::format("--{} changes nothing here: it is for {}", flag, who));
  };
  refuse("restarts", has_restarts, "pgd, mpgd, apgd-ce, apgd-dlr, apgd-t, fab, fab-t and square");
  refuse("targets", has_targets, "apgd-t and fab-t");
  if (words.count("goal") > 0 && number_or(words, "targets", 0) > 0)
    throw Misuse("--goal and --targets: with a goal there is one target");
}

/// What the flags change of an attack.
struct Changes {
  int iterations, queries, restarts, targets;

  void operator()(attack::Noise&) const {}
  void operator()(attack::Fgsm&) const {}
  void operator()(attack::Pgd& how) const {
    if (iterations > 0) how.steps = iterations;
    if (restarts > 0) how.restarts = restarts;
  }
  void operator()(attack::Apgd& how) const {
    if (iterations > 0) how.iterations = iterations;
    if (restarts > 0) how.restarts = restarts;
    if (targets > 0) how.targets = targets;
  }
  void operator()(attack::Fab& how) const {
    if (iterations > 0) how.iterations = iterations;
    if (restarts > 0) how.restarts = restarts;
    if (targets > 0 && how.targets > 0) how.targets = targets;
  }
  void operator()(attack::Square& how) const {
    if (queries > 0) how.queries = queries;
    if (restarts > 0) how.restarts = restarts;
  }
  void operator()(attack::Spsa& how) const {
    if (iterations > 0) how.iterations = iterations;
  }
  void operator()(attack::CarliniWagner& how) const {
    if (iterations > 0) how.iterations = iterations;
  }
};

attack::Suite suite_in(const Words& words, Norm norm) {
  if (words.count("attack") == 0) {
    const std::string suite = word_or(words, "suite", "standard");
    return attack::suite_of(suite == "adaptive" ? "standard" : suite, norm);
  }
  attack::Suite suite;
  for (const std::string& name : parts_of(words.at("attack")))
    suite.attacks.push_back(attack::attack_of(name));
  return suite;
}

/// Metrics that are estimated from the image, so that a gradient can follow the estimate.
bool has_estimate(const Words& words) {
  const std::string metric = word_or(words, "metric", "dot");
  return (metric == "layer-change" || metric == "flat" || metric == "jacobian" ||
          metric == "key-covariance") &&
         word_or(words, "scope", "") != "running";
}

attack::Model open_model(const Words& words, const Common& common, const RunConfig& config,
                         const std::string& run, const std::string& weights, bool plain) {
  const train::ImageTraining training = image_training(words, common);
  return train::open_classifier(training.model, weights, facts_in(run, config.data),
                                training.input.place, plain);
}

/// The plain model that gradients are tried of: another run, or this one's weights with dot.
attack::Model plain_model(const Attack& verb, const RunConfig& config, const Words& words,
                          const Attacked& subject) {
  const auto other = verb.words.find("plain");
  if (other == verb.words.end())
    return open_model(words, verb.common, config, verb.run, subject.weights, true);
  const RunConfig plain = read_config(other->second);
  const train::ImageFacts own = facts_in(verb.run, config.data);
  const train::ImageFacts facts = facts_in(other->second, plain.data);
  if (plain.task != "images" || facts.classes != own.classes || facts.channels != own.channels) {
    throw FileError(fmt::format("{}: is no run of images with {} channels and {} classes",
                                shown(other->second), own.channels, own.classes));
  }
  return open_model(plain.words, verb.common, plain, other->second, subject.plain_weights, false);
}

std::vector<Arm> arms_of(const Attack& verb, const RunConfig& config, const Words& words,
                         const AttackPlan& plan, const Attacked& subject) {
  if (plan.suite != "adaptive") return {{"", subject.model, {}, plan.attacks}};
  std::vector<Arm> arms;
  for (const char* mode : {"detached", "through"}) {
    if (!has_estimate(words)) break;
    Words own = words;
    own["metric-grad"] = mode;
    arms.push_back({mode,
                    open_model(own, verb.common, config, verb.run, subject.weights, false),
                    {},
                    plan.attacks});
  }
  if (arms.empty()) arms.push_back({"own", subject.model, {}, plan.attacks});
  std::vector<attack::Attack> by_gradient;
  for (const attack::Attack& attack : plan.attacks) {
    if (std::holds_alternative<attack::Apgd>(attack)) by_gradient.push_back(attack);
  }
  arms.push_back({"plain", subject.model, plain_model(verb, config, words, subject), by_gradient});
  return arms;
}

}  // namespace

AttackPlan attack_plan(const Words& words, const Common& common) {
  const std::string norm = word_or(words, "norm", "linf");
  AttackPlan plan;
  plan.options.norm = norm == "l2" ? Norm::l2 : norm == "l1" ? Norm::l1 : Norm::linf;
  plan.options.seed = common.seed;
  plan.options.batch = number_or(words, "batch", 250);
  plan.count = number_or(words, "count", plan.count);
  plan.check = number_or(words, "check", plan.check);
  plan.goal = word_or(words, "goal", "");
  plan.sheet = number_or(words, "sheet", plan.sheet);
  if (words.count("attack") > 0 && words.count("suite") > 0)
    throw Misuse("--attack and --suite: one of them says what to run");
  plan.suite = words.count("attack") > 0 ? words.at("attack") : word_or(words, "suite", "standard");
  if (words.count("plain") > 0 && plan.suite != "adaptive")
    throw Misuse("--plain is for --suite adaptive");
  if (words.count("metric-grad") > 0 && plan.suite == "adaptive")
    throw Misuse("--suite adaptive has the metric's gradient both ways; leave --metric-grad out");
  for (const std::string& word : parts_of(word_or(words, "eps", "8")))
    plan.reaches.push_back(reach_of(word, plan.options.norm, norm));
  std::stable_sort(plan.reaches.begin(), plan.reaches.end(),
                   [](const Reach& a, const Reach& b) { return a.eps < b.eps; });
  plan.reaches.erase(std::unique(plan.reaches.begin(), plan.reaches.end(),
                                 [](const Reach& a, const Reach& b) { return a.eps == b.eps; }),
                     plan.reaches.end());
  const attack::Suite suite = suite_in(words, plan.options.norm);
  plan.attacks = suite.attacks;
  check_norm(plan.attacks, plan.options.norm);
  check_heard(words, plan.attacks);
  const Changes changes{number_or(words, "iterations", 0), number_or(words, "queries", 0),
                        number_or(words, "restarts", 0), number_or(words, "targets", 0)};
  for (attack::Attack& attack : plan.attacks) std::visit(changes, attack);
  const int eot = number_or(words, "eot", 0);
  plan.options.eot = eot > 0 ? eot : suite.eot;
  return plan;
}

Attacked open_attacked(const Attack& verb, const RunConfig& config, const AttackPlan& plan) {
  if (config.task != "images") {
    throw FileError(fmt::format("{}: is a run of {}; attack needs one of images", shown(verb.run),
                                config.task));
  }
  Words words = config.words;
  for (const char* flag : {"data", "split"}) {
    if (verb.words.count(flag) > 0) words[flag] = verb.words.at(flag);
  }
  if (verb.words.count("metric-grad") > 0) words["metric-grad"] = verb.words.at("metric-grad");
  const train::ImageFacts facts = facts_in(verb.run, config.data);
  Attacked subject{.words = words,
                   .weights = weights_of(verb.run, verb.words.count("ema") > 0),
                   .plain_weights = {},
                   .model = {},
                   .pixels = {},
                   .images = {},
                   .labels = {},
                   .arms = {},
                   .classes = facts.classes};
  const std::int64_t targets = number_or(verb.words, "targets", 0);
  if (targets >= facts.classes) {
    throw Misuse(fmt::format("--targets {}: the model has {} classes, so {} others", targets,
                             facts.classes, facts.classes - 1));
  }
  subject.model = open_model(words, verb.common, config, verb.run, subject.weights, false);
  const train::ImageTraining training = image_training(words, verb.common);
  const data::ImageSet set = images_of(config.data, words);
  subject.pixels = train::pixels_of(training.model, facts, set, training.input, plan.count);
  const at::Device device = verb.common.cuda ? at::kCUDA : at::kCPU;
  subject.images = subject.pixels.images.to(device);
  subject.labels = subject.pixels.labels.to(device);
  if (verb.words.count("plain") > 0)
    subject.plain_weights = weights_of(verb.words.at("plain"), false);
  subject.arms = arms_of(verb, config, words, plan, subject);
  return subject;
}

}  // namespace foci::cli
