// SPDX-License-Identifier: Apache-2.0
// results.json of runs that are made up: what is said while they run, of speeds on a busy machine,
// of small differences, and of losses that still fall.
#include "cli/compare_doubts.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace {

using foci::cli::Comparison;
using foci::cli::demonstration_reason;
using foci::cli::Json;

/// dot and flat over three seeds; nothing is measured.
Comparison made() {
  Comparison all;
  all.facts = Json::object();
  all.mechanisms = {{"dot", "", false, {}}, {"flat", "", true, {}}};
  all.seeds = {0, 1, 2};
  for (const std::uint64_t seed : all.seeds) {
    for (const auto& mechanism : all.mechanisms) {
      foci::cli::ComparedRun run;
      run.state.mechanism = mechanism.name;
      run.state.seed = seed;
      all.runs.push_back(run);
    }
  }
  return all;
}

/// `dot` of dot's runs, `flat` of flat's, a little apart from seed to seed.
void add(Comparison& to, const std::string& name, double dot, double flat,
         const std::vector<foci::RecordFlag>& flags = {}) {
  for (auto& run : to.runs) {
    const bool is_dot = run.state.mechanism == "dot";
    const double wave = 1 + 1e-4 * double(run.state.seed) * (is_dot ? 1 : -1);
    run.state.state = "done";
    run.found.records.push_back(
        {.name = name, .value = wave * (is_dot ? dot : flat), .n = 100, .flags = flags});
  }
}

std::string said(const Comparison& all) { return results_json(all).at("verdict").dump(); }

TEST(CompareResults, NothingIsConcludedFromNothing) {
  const std::string before = said(made());
  EXPECT_NE(before.find("Nothing is measured yet: 0 of 6 runs are done."), before.npos) << before;
  Comparison some = made();
  add(some, "top1", 0.5, 0.5);
  for (auto& run : some.runs) {
    if (run.state.mechanism != "flat") continue;
    run.state.state = "waiting";
    run.found = {};
  }
  EXPECT_NE(said(some).find("No verdict yet: 3 of 6 runs are done."), std::string::npos);
  Comparison all = made();
  add(all, "top1", 0.5, 0.7);
  EXPECT_NE(said(all).find("Better than dot on this budget: flat"), std::string::npos) << said(all);
  EXPECT_NE(said(all).find("1 comparison was made; "), std::string::npos);
}

TEST(CompareResults, OneSeedHasNoCountOfComparisons) {
  Comparison one = made();
  one.seeds = {0};
  one.runs.resize(2);
  add(one, "top1", 0.5, 0.7);
  EXPECT_EQ(results_json(one).at("verdict").at("comparisons"), 0);
  EXPECT_EQ(said(one).find("Holm"), std::string::npos) << said(one);
}

/// What the terminal shows of them.
std::string printed(const Json& results) {
  testing::internal::CaptureStdout();
  foci::cli::print_results(results);
  std::fflush(stdout);
  return testing::internal::GetCapturedStdout();
}

TEST(CompareResults, AScoreUnderAttackStandsBesideTheSameImagesBefore) {
  Comparison all = made();
  add(all, "top1", 0.9, 0.9);
  add(all, "robust linf 1/255", 0.4, 0.4);
  add(all, "clean", 0.6, 0.6);
  const Json results = results_json(all);
  const Json& measures = results.at("measures");
  ASSERT_EQ(measures.size(), 3u);
  EXPECT_EQ(measures[1].at("title"), "Before the attack, same images");
  EXPECT_EQ(measures[1].at("decides"), false);
  EXPECT_EQ(measures[1].at("key"), true);
  EXPECT_EQ(measures[2].at("name"), "robust linf 1/255");
  EXPECT_EQ(results.at("verdict").at("comparisons"), 2);
}

/// As they come of a map by name: 16 before 2, and 2 before 8.
TEST(CompareResults, EpsAreInTheOrderOfNumbers) {
  Comparison all = made();
  add(all, "clean", 0.9, 0.9);
  for (const char* eps : {"16/255", "2/255", "8/255"}) {
    add(all, std::string("robust linf ") + eps, 0.4, 0.4);
    add(all, std::string("robust linf ") + eps + " 1. apgd-ce", 0.5, 0.5);
  }
  for (const char* eps : {"10", "9.5"}) add(all, std::string("robust l2 ") + eps, 0.3, 0.3);
  const Json results = results_json(all);
  const Json& curves = results.at("curves").at("robustness");
  ASSERT_EQ(curves.size(), 3u);
  for (const Json& curve : curves) {
    EXPECT_EQ(curve.at("eps"), curve.at("norm") == "l2" ? Json({0, 9.5, 10}) : Json({0, 2, 8, 16}));
    EXPECT_EQ(curve.at("values").at("dot").size(), curve.at("eps").size());
  }
  std::vector<std::string> titles;
  for (const Json& measure : results.at("measures")) titles.push_back(measure.at("title"));
  EXPECT_EQ(titles,
            (std::vector<std::string>{"Before the attack, same images", "Under attack, linf 2/255",
                                      "Under attack, linf 8/255", "Under attack, linf 16/255",
                                      "Under attack, l2 9.5", "Under attack, l2 10"}));
}

TEST(CompareResults, AFlagSaysAtWhichMeasureMechanismAndSeedItStands) {
  Comparison all = made();
  const foci::RecordFlag doubt{"masking", "the gradient vanishes", "attack adaptively"};
  add(all, "top1", 0.9, 0.9);
  add(all, "robust linf 1/255", 0.4, 0.4);
  for (auto& run : all.runs) {
    if (run.state.mechanism == "flat" && run.state.seed == 1)
      run.found.records.back().flags.push_back(doubt);
  }
  all.facts["flags"] = Json::array({{{"name", "whole"}, {"means", "of all"}, {"do", "nothing"}}});
  const Json results = results_json(all);
  EXPECT_FALSE(results.at("flags")[0].contains("measures"));
  EXPECT_EQ(results.at("flags")[1].at("measures"), Json({"Under attack, linf 1/255"}));
  EXPECT_EQ(results.at("measures")[0].at("flagged"), Json::object());
  const Json& flagged = results.at("measures")[1].at("flagged");
  EXPECT_EQ(flagged, Json::parse(R"({"dot":[[],[],[]],"flat":[[],["masking"],[]]})"));
  const std::string csv = foci::cli::results_csv(results);
  EXPECT_TRUE(csv.starts_with("measure,mechanism,seed,value,unit,n,group,flags\n")) << csv;
  std::istringstream lines(csv);
  std::vector<std::string> doubted;
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with(",masking")) doubted.push_back(line.substr(0, 24));
  }
  EXPECT_EQ(doubted, std::vector<std::string>{"robust linf 1/255,flat,1"});
  EXPECT_NE(printed(results).find("doubt: masking (Under attack, linf 1/255): the gradient"),
            std::string::npos);
}

TEST(CompareResults, CorruptionsOfTextAndSeriesDecideTogether) {
  Comparison text = made(), series = made();
  add(text, "perplexity", 9, 9);
  add(text, "perplexity_swap", 20, 10);
  add(text, "perplexity_bytes", 40, 20);
  add(series, "accuracy_noise_3", 0.2, 0.6);
  add(series, "accuracy_spikes_3", 0.4, 0.8);
  const Json of_text = results_json(text), of_series = results_json(series);
  const Json& mean = of_text.at("measures")[1];
  EXPECT_EQ(mean.at("title"), "Perplexity under corruption");
  EXPECT_EQ(mean.at("decides"), true);
  EXPECT_NEAR(mean.at("mean").at("dot").get<double>(), 30, 0.01);
  EXPECT_EQ(mean.at("against").at("flat").at("verdict"), "better");
  EXPECT_EQ(of_text.at("verdict").at("comparisons"), 2);
  EXPECT_NE(said(text).find("Better than dot on this budget: flat (Perplexity under corruption)"),
            std::string::npos)
      << said(text);
  EXPECT_EQ(of_series.at("measures")[0].at("title"), "Accuracy under corruption");
  EXPECT_NEAR(of_series.at("measures")[0].at("mean").at("flat").get<double>(), 0.7, 1e-3);
}

TEST(CompareResults, TheTableSaysOverHowManySamples) {
  Comparison all = made();
  add(all, "top1", 0.9, 0.9);
  add(all, "effective_keys layer 0", 5, 6);
  add(all, "peak_mebibytes", 400, 400);
  const std::string text = printed(results_json(all));
  EXPECT_NE(text.find("measure                    n  "), text.npos) << text;
  EXPECT_NE(text.find("\nClean accuracy, %        100  90.01"), text.npos) << text;
  EXPECT_NE(text.find("\nEffective keys           100   5.00"), text.npos) << text;
  EXPECT_NE(text.find("\nMemory in training, MiB            400"), text.npos) << text;
}

TEST(CompareResults, PanelsOfOneLayerShowThePairThatAMetricTellsApart) {
  const auto panel = [](const Json& axes, const Json& metric) {
    return Json::array({{{"layer", 0},
                         {"head", 0},
                         {"axes", axes},
                         {"metric", {{metric[0], 0}, {0, metric[1]}}},
                         {"keys", {{1, 2}}},
                         {"query", {3, 4}},
                         {"weights", {1}},
                         {"space",
                          {{"keys", {{1, 2, 7}}},
                           {"query", {3, 4, 8}},
                           {"metric", {{1, 0, 0}, {0, 1, 0}, {0, 0, 0.5}}}}}}});
  };
  Comparison all = made();
  all.runs[0].found.ellipses = panel({0, 1}, {1, 1});    // dot
  all.runs[1].found.ellipses = panel({0, 2}, {1, 0.5});  // flat
  const Json panels = results_json(all).at("ellipses");
  ASSERT_EQ(panels.size(), 2u);
  for (const Json& one : panels) {
    EXPECT_EQ(one.at("axes"), Json({0, 2}));
    EXPECT_EQ(one.at("keys"), Json::parse("[[1, 7]]"));
    EXPECT_EQ(one.at("query"), Json({3, 8}));
    EXPECT_EQ(one.at("metric"), Json::parse("[[1, 0], [0, 0.5]]"));
    EXPECT_FALSE(one.contains("space"));
  }
  all.runs[1].found.ellipses[0].erase("space");  // of an older version
  EXPECT_EQ(results_json(all).at("ellipses")[0].at("axes"), Json({0, 1}));
}

TEST(CompareResults, SpeedsOfABusyMachineAreNotHeldAgainstEachOther) {
  Comparison calm = made(), busy = made();
  add(calm, "train_per_second", 100, 200);
  add(busy, "train_per_second", 100, 200, {{"busy-machine", "turns differ", "time again"}});
  EXPECT_NE(said(calm).find("Training speed: flat is better by "), std::string::npos);
  EXPECT_EQ(said(busy).find("Training speed"), std::string::npos) << said(busy);
  const Json against = results_json(busy).at("measures")[0].at("against").at("flat");
  EXPECT_EQ(against.at("verdict"), "unknown");
  EXPECT_EQ(against.at("words"), "no verdict: timed on a busy machine");
}

TEST(CompareResults, ASmallDifferenceOfMemoryIsNoNews) {
  Comparison little = made(), much = made();
  add(little, "peak_mebibytes", 400, 392);
  add(much, "peak_mebibytes", 400, 300);
  EXPECT_EQ(said(little).find("Memory"), std::string::npos) << said(little);
  EXPECT_NE(said(much).find("Memory in training: flat is better by "), std::string::npos);
}

/// Flags of a comparison whose losses are factor^step.
std::string flags_of(double factor, const Json& epochs = {}, const Json& samples = {}) {
  Comparison all = made();
  all.facts["epochs"] = epochs;
  all.facts["data"]["train"] = samples;
  add(all, "top1", 0.5, 0.5);
  for (auto& run : all.runs) {
    for (int step = 1; step <= 100; ++step) {
      run.curve["step"].push_back(step);
      run.curve["loss"].push_back(std::pow(factor, step));
    }
  }
  return results_json(all).at("flags").dump();
}

TEST(CompareResults, LossesThatStillFallAreTold) {
  EXPECT_EQ(flags_of(1).find("loss-falls"), std::string::npos);
  EXPECT_EQ(flags_of(1.01).find("loss-falls"), std::string::npos);
  // 0.99 to the 20th is 0.818
  EXPECT_NE(flags_of(0.99).find("by 18 % over its last fifth"), std::string::npos)
      << flags_of(0.99);
  // In the first epochs; later a loss falls on samples that were seen again and again.
  EXPECT_NE(flags_of(0.99, 20, 300).find("loss-falls"), std::string::npos);
  EXPECT_EQ(flags_of(0.99, 21, 300).find("loss-falls"), std::string::npos);
}

TEST(CompareResults, SamplesKnownByHeartAreTold) {
  EXPECT_NE(flags_of(1, 70.2, 322).find("runs went 70 times over 322 samples: "), std::string::npos)
      << flags_of(1, 70.2, 322);
  for (const auto& [epochs, samples] :
       {std::pair<Json, Json>(30, 322), {70, 2000}, {70, {}}, {{}, 322}})
    EXPECT_EQ(flags_of(1, epochs, samples).find("many-epochs"), std::string::npos) << epochs;
}

TEST(CompareResults, StepsAndEpochsAreNumbersThatPeopleRead) {
  const auto text = [](const Json& epochs) {
    return foci::cli::steps_text({{"steps", 600}, {"epochs", epochs}});
  };
  EXPECT_EQ(text({}), "600 steps each");
  EXPECT_EQ(text(0.3333), "600 steps each (0.33 epochs)");
  EXPECT_EQ(text(9.96), "600 steps each (10 epochs)");
  EXPECT_EQ(text(152.4), "600 steps each (152 epochs)");
}

TEST(CompareResults, ADemonstrationSaysWhatItLacks) {
  EXPECT_EQ(demonstration_reason(10, 10, 0), "");
  EXPECT_EQ(demonstration_reason(10, 10, 1800), "");
  EXPECT_EQ(demonstration_reason(3, 10, 2400), "3 seeds, where 10 are the least (--seeds 10)");
  EXPECT_EQ(demonstration_reason(3, 10, 0, false), "3 seeds, where 10 are the least");
  EXPECT_EQ(demonstration_reason(12, 10, 660),
            "a budget of 11m, where 30m is the least (--budget 30m)");
  EXPECT_EQ(demonstration_reason(1, 10, 660),
            "1 seed, where 10 are the least (--seeds 10), and a budget of 11m, where 30m is the "
            "least (--budget 30m)");
}

}  // namespace
