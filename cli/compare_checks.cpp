// SPDX-License-Identifier: Apache-2.0
// What a plan cannot mean. An attack's numbers are read where attacks are: cli/torch.
#include "cli/compare_checks.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <foci/corrupt.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

namespace foci::cli {
namespace {

/// Flags that not every task has, and whose it is.
const std::map<std::string_view, std::vector<std::string>>& task_flags() {
  static const std::vector<std::string> image = {"image"};
  static const std::map<std::string_view, std::vector<std::string>> flags = {
      {"judge-samples", image},
      {"attack", image},
      {"norm", image},
      {"eps", image},
      {"iterations", image},
      {"queries", image},
      {"attack-samples", image},
      {"check", image},
      {"frost", image},
      {"corrupt-samples", image},
      {"corruptions", {"image", "text", "series"}},
      {"severity", {"image", "series"}},
      {"maps", {"image", "segment"}}};
  return flags;
}

/// What a task without the flag does anyway.
bool asks_for_nothing(const std::string& flag, const std::string& value) {
  return (flag == "maps" && value == "0") ||
         ((flag == "attack" || flag == "corruptions") && value == "none");
}

void check_frost(const Words& words, const Words& typed) {
  const auto pictures = words.find("frost");
  if (typed.count("frost") > 0 && !has_frost(words.at("corruptions"))) {
    throw Misuse(fmt::format("--frost is for the corruption frost, which --corruptions {} has not",
                             shown(words.at("corruptions"))),
                 "as in --corruptions fog,frost");
  }
  if (pictures != words.end()) corrupt::read_frost(pictures->second);
  if (pictures != words.end() || !has_frost(words.at("corruptions"))) return;
  throw Misuse("frost needs pictures of it: --frost FOLDER",
               "ImageNet-C's are in its repository; without them --corruptions "
               "noise,blur,snow,fog,brightness,digital");
}

}  // namespace

bool has_flag(const std::string& task, std::string_view flag) {
  const auto found = task_flags().find(flag);
  if (found == task_flags().end()) return true;
  return std::find(found->second.begin(), found->second.end(), task) != found->second.end();
}

bool is_of_training(std::string_view flag) {
  static const std::set<std::string_view> flags = {"mechanisms", "seeds", "budget", "steps",
                                                   "model"};
  return flags.count(flag) > 0;
}

std::string corruption_defaults(const std::string& task) {
  if (task == "image") return "gaussian_noise,motion_blur,fog,contrast,pixelate";
  if (task == "text") return "swap,bytes";
  return task == "series" ? "noise,spikes,missing" : "none";
}

bool has_frost(const std::string& corruptions) {
  if (corruptions == "none") return false;
  const auto frosts = [](const std::string& name) {
    const auto all = corrupt::corruptions_named(name);
    return std::find(all.begin(), all.end(), corrupt::Corruption::frost) != all.end();
  };
  const auto names = split(corruptions, ',');
  return std::any_of(names.begin(), names.end(), frosts);
}

/// What trained runs have of their own cannot be asked for.
void check_checkpoint(const Words& typed) {
  if (typed.count("checkpoint") == 0) return;
  for (const auto& [flag, value] : typed) {
    if (!is_of_training(flag)) continue;
    throw Misuse(fmt::format("--{} does not go with --checkpoint", flag),
                 "nothing is trained; mechanisms, seeds and steps are those of the runs");
  }
}

void check_task_flags(const Words& typed, const std::string& task) {
  for (const auto& [flag, value] : typed) {
    if (has_flag(task, flag) || asks_for_nothing(flag, value)) continue;
    throw Misuse(fmt::format("compare --task {} has no --{}; it is for {}", task, flag,
                             listed(task_flags().at(flag))));
  }
}

void check_train(const Words& words) {
  for (const char* flag : {"data", "seed", "steps", "epochs", "metric", "weighting", "split"}) {
    if (words.count(flag) == 0) continue;
    throw Misuse(fmt::format("{} is not for the model's words", flag),
                 "the plan has flags for data, seeds, steps and mechanisms; judged is the test "
                 "split, or valid without one");
  }
}

void check_corruptions(const Words& words, const Words& typed) {
  const std::string &text = words.at("corruptions"), &task = words.at("task");
  if (!has_flag(task, "corruptions")) return;
  std::vector<std::string> known = split(corruption_defaults(task), ',');
  if (task == "image") {
    known = {"noise", "blur", "weather", "digital", "all", "extra"};
    for (int i = 0; i < corrupt::corruption_count; ++i)
      known.emplace_back(corrupt::name_of(corrupt::Corruption(i)));
  }
  for (const std::string& name : split(text, ',')) {
    if (text == "none" || std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Misuse(fmt::format("--corruptions does not know '{}' for --task {}{}", shown(name), task,
                             suggestion(name, known)),
                 "none, or of " + listed(known));
  }
  if (task == "image") check_frost(words, typed);
}

void check_attacks(const Words& words) {
  static const std::vector<std::string> known = {"noise",   "fgsm",     "pgd",    "mpgd",
                                                 "apgd-ce", "apgd-dlr", "apgd-t", "fab",
                                                 "fab-t",   "square",   "spsa",   "cw"};
  if (words.at("attack") == "none") return;
  for (const std::string& name : split(words.at("attack"), ',')) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Misuse(fmt::format("--attack does not know '{}'{}", shown(name), suggestion(name, known)),
                 "none, or of " + listed(known));
  }
}

}  // namespace foci::cli
