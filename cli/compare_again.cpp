// SPDX-License-Identifier: Apache-2.0
// The commands that do a comparison again: by its plan.json, and with every flag.
#include "cli/compare_plan.hpp"

#include "cli/shell_words.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>

namespace foci::cli {
namespace {

/// "vit_micro dim=32 batch=64"
std::string model_flag(const Words& train) {
  std::vector<std::string> parts;
  if (train.count("model") > 0) parts.push_back(train.at("model"));
  for (const auto& [flag, value] : train) {
    if (flag != "model") parts.push_back(fmt::format("{}={}", flag, value));
  }
  return listed(parts, " ");
}

std::string plan_value(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::vector<std::string> parts;
  for (const Json& part : value) parts.push_back(part.get<std::string>());
  return listed(parts, ",");
}

}  // namespace

std::string again_command(const ComparePlan& plan, const std::string& out) {
  const bool cuda = plan.typed.count("device") > 0 && plan.typed.at("device") == "cuda";
  return fmt::format("foci {} --plan {}{} --out again", plan.called,
                     shell_quoted(out + "/plan.json"), cuda ? " --device cuda" : "");
}

std::string flags_command(const ComparePlan& plan, const std::string& made_by) {
  std::string text = (made_by.empty() ? "" : made_by + " && ") + "foci " + plan.called;
  const auto add = [&](const std::string& flag, const std::string& value) {
    text += fmt::format(" --{} {}", flag, shell_quoted(value));
  };
  const Json json = json_of(plan);
  const bool has_steps = json.contains("steps") && json.at("steps") != 0;
  for (const auto& [flag, value] : json.items()) {
    if (flag == "train" || flag == (has_steps ? "budget" : "steps")) continue;
    add(flag, flag == "data" && !made_by.empty() ? "made-images" : plan_value(value));
  }
  if (json.contains("train")) add("model", model_flag(plan.train));
  if (plan.typed.count("device") > 0) add("device", plan.typed.at("device"));
  return text + " --out again";
}

}  // namespace foci::cli
