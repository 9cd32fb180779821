// SPDX-License-Identifier: Apache-2.0
// What a folder of foci compare holds, as tests ask for it.
#pragma once

#include "train/child.hpp"

#include "cli/compare_plan.hpp"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace train_test {

inline nlohmann::json results_of(const std::string& out) {
  return nlohmann::json::parse(read(out + "/results.json"));
}

inline foci::cli::ComparePlan plan_from(const Words& words) {
  const auto verb = std::get<foci::cli::WithTorch>(foci::cli::parse(Words{"compare"} + words)).verb;
  return foci::cli::plan_of(std::get<foci::cli::Compare>(verb));
}

/// Two mechanisms, two seeds, a few steps.
inline Words small(const std::string& out) {
  const std::string words =
      "--mechanisms dot,layer-change --seeds 2 --steps 4 --attack-samples 6 --iterations 2 "
      "--queries 4 --check 0 --corruptions fog,contrast --corrupt-samples 12 --jobs 2 --threads 2";
  Words all = {"compare",
               "--data",
               images(),
               "--out",
               out,
               "--model",
               "dim=16 depth=2 heads=2 patch=14 batch=20 judge-count=8"};
  std::istringstream parts(words);
  for (std::string word; parts >> word;) all.push_back(word);
  return all;
}

/// By value: a loop over a part of what results_of gives would outlive it.
inline nlohmann::json of_results(const std::string& out, const std::string& part) {
  return results_of(out).at(part);
}

/// The values that do not hang on the clock.
inline nlohmann::json values_of(const std::string& out) {
  nlohmann::json values;
  for (const nlohmann::json& one : of_results(out, "measures")) {
    if (one.at("group") != "speed" && one.at("group") != "memory")
      values[one.at("name").get<std::string>()] = one.at("values");
  }
  EXPECT_FALSE(values.empty());
  return values;
}

inline nlohmann::json measure(const nlohmann::json& results, const std::string& name) {
  for (const nlohmann::json& one : results.at("measures")) {
    if (one.at("name") == name) return one;
  }
  ADD_FAILURE() << "no measure " << name;
  return {{"values", {}}, {"decides", {}}, {"group", {}}};
}

/// The comparison that several tests look at; made once.
inline const std::string& whole() {
  static const std::string out = [] {
    const std::string path = folder().file("compared");
    const Ran ran = call(small(path));
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_NE(ran.out.find("4 runs, 4 steps each (0.33 epochs); "), std::string::npos) << ran.out;
    EXPECT_NE(ran.out.find("2 seeds cannot tell which mechanism is better; 3 can.\n"),
              std::string::npos);
    EXPECT_EQ(ran.out.find("Holm"), std::string::npos) << ran.out;
    EXPECT_NE(ran.out.find("A demonstration: 2 seeds, where 10 are the least (--seeds 10).\n"),
              std::string::npos);
    return path;
  }();
  return out;
}

/// Every file of the runs and when it was last written.
inline std::set<std::string> times_of(const std::string& out) {
  std::set<std::string> times;
  for (const auto& entry : fs::recursive_directory_iterator(out + "/runs")) {
    if (!entry.is_regular_file()) continue;
    times.insert(entry.path().string() + " " +
                 std::to_string(entry.last_write_time().time_since_epoch().count()));
  }
  return times;
}

}  // namespace train_test
