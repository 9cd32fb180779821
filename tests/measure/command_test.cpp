// SPDX-License-Identifier: Apache-2.0
// foci measure on small trained runs of every task and on the tensors of a call: what it says and
// writes, that every flag changes something, and that every mistake is one line.
#include "train/child.hpp"

#include "cli/pages.hpp"

#include <foci/data.hpp>
#include <foci/record.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace {

using namespace train_test;

/// Trained once, with a checkpoint at every step and an average.
const std::string& watched() {
  static const std::string run = [] {
    const std::string path = folder().file("watched");
    const Ran ran = call(tiny(path) + Words{"--save-every", "1", "--keep", "3", "--ema", "0.5"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    return path;
  }();
  return run;
}

Words measure(const Words& more = {}) {
  return Words{"measure", watched(), "--threads", "1", "--samples", "12", "--closely", "3"} + more;
}

/// Every number in it is finite, or absent.
void expect_sound(const nlohmann::json& json) {
  if (json.is_number()) EXPECT_TRUE(std::isfinite(json.get<double>()));
  if (!json.is_structured()) return;
  for (const auto& part : json) expect_sound(part);
}

TEST(MeasureCommand, SaysAndWritesWhatItFinds) {
  const std::size_t before = foci::read_records(watched() + "/records.jsonl").size();
  const Ran ran = call(measure({"--json"}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto json = ran.json();
  const auto& one = json.at("measured").at(0);
  EXPECT_EQ(one.at("samples"), 12);
  EXPECT_EQ(one.at("of"), 48);
  ASSERT_EQ(one.at("layers").size(), 2u);
  expect_sound(one);
  const auto& layer = one.at("layers").at(1);
  const double concentration = layer.at("concentration").at("mean"),
               keys = layer.at("effective_keys").at("mean");
  EXPECT_LE(concentration, 1);
  EXPECT_LE(keys, 5);  // 4 patches and the class token
  EXPECT_GE(keys, 1);
  EXPECT_EQ(layer.at("concentration").at("n"), 12);
  EXPECT_EQ(layer.at("distance").at("n"), 3);
  EXPECT_LE(layer.at("distance").at("mean").get<double>(), std::sqrt(2.0));
  EXPECT_EQ(layer.at("by_head").size(), 2u);
  EXPECT_EQ(layer.at("metric").at("most"), 1);
  EXPECT_FALSE(one.at("layers").at(0).contains("metric")) << "the lowest layer is dot";
  EXPECT_TRUE(one.at("layers").at(0).at("key_change").is_null());
  EXPECT_EQ(layer.at("tokens").at("effective_rank").at("n"), 3);
  EXPECT_EQ(one.at("embedded").at("cosine").at("n"), 12);
  EXPECT_EQ(json.at("out"), watched() + "/measure");
  EXPECT_EQ(nlohmann::json::parse(read(watched() + "/measure/measure.json")).at("measured"),
            json.at("measured"));
  const auto records = foci::read_records(watched() + "/records.jsonl");
  EXPECT_EQ(records.size(), before + json.at("records").size());
  const auto found = std::find_if(records.begin() + std::ptrdiff_t(before), records.end(),
                                  [](const auto& r) { return r.name == "concentration layer 1"; });
  ASSERT_NE(found, records.end());
  EXPECT_EQ(found->value, concentration);
  EXPECT_EQ(found->n, 12);
  EXPECT_GT(found->spread.value_or(0), 0);
  EXPECT_TRUE(found->command.starts_with("foci measure " + watched())) << found->command;
  EXPECT_FALSE(found->data_sha256.empty());
}

TEST(MeasureCommand, CheckpointsAndRunsStandSideBySide) {
  const auto json = call(measure({"--checkpoints", "--json"})).json();
  ASSERT_EQ(json.at("measured").size(), 3u);
  EXPECT_EQ(json.at("measured").at(0).at("subject"), watched() + " step-1");
  const auto& metric = json.at("measured").at(2).at("layers").at(1).at("metric");
  EXPECT_GT(metric.at("drift_steps").get<double>(), 0);
  EXPECT_FALSE(json.at("measured").at(0).at("layers").at(1).at("metric").contains("drift_steps"));
  std::set<std::string> names;
  for (const auto& record : json.at("records")) names.insert(record.at("name"));
  EXPECT_EQ(names.size(), json.at("records").size()) << "a checkpoint's Records bear its step";
  const std::string other = folder().file("beside");
  ASSERT_EQ(call(tiny(other) + Words{"--metric", "dot"}).status, 0);
  const Ran ran = call(measure({"--beside", other, "--per", "head"}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  for (const std::string& says :
       {watched() + ": 12 of 48 images", other + ": 12 of 48 images", std::string("  head 1"),
        std::string("means over layers"), std::string("tokens after"), std::string("metric of")})
    EXPECT_NE(ran.out.find(says), std::string::npos) << says << "\n" << ran.out;
  EXPECT_TRUE(fs::exists(other + "/records.jsonl"));
}

TEST(MeasureCommand, EachQueryIsInTheFile) {
  const Ran ran = call(measure({"--per", "query", "--json", "--out", folder().file("queries")}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_FALSE(ran.json().at("measured").at(0).at("layers").at(0).contains("by_query"));
  const auto file = nlohmann::json::parse(read(folder().file("queries") + "/measure.json"));
  const auto& queries = file.at("measured").at(0).at("layers").at(0).at("by_query");
  ASSERT_EQ(queries.at("concentration").size(), 2u);
  ASSERT_EQ(queries.at("entropy").at(1).size(), 5u);
  double sum = 0;
  for (const auto& head : queries.at("concentration")) {
    for (const auto& value : head) sum += value.get<double>() / 10;
  }
  EXPECT_NEAR(sum, file["measured"][0]["layers"][0]["concentration"]["mean"].get<double>(), 1e-6);
}

/// The other tasks: what goes through a model differs, and what is known of it.
TEST(MeasureCommand, EveryTaskIsMeasured) {
  std::string text, lines;
  for (int i = 0; i < 300; ++i) text += i % 3 == 0 ? "one two\n" : "red fox sees\n";
  write(folder().file("measured.txt"), text);
  const std::string tsv = folder().file("measured-tsv"), pairs = folder().file("measured-pairs");
  fs::create_directories(tsv);
  for (const auto& [name, count] : {std::pair("train", 24), {"test", 8}}) {
    lines.clear();
    for (int i = 0; i < count; ++i)
      lines +=
          std::string(i % 2 == 0 ? "up\tu u" : "down\td d") + (i % 3 == 0 ? " x x x" : "") + "\n";
    write(tsv + "/" + name + ".tsv", lines);
  }
  for (const char* part : {"train", "trainannot", "test", "testannot"}) {
    fs::create_directories(pairs + "/" + part);
    for (int i = 0; i < 6; ++i) {
      foci::data::Image image(20, 24, std::string(part).ends_with("annot") ? 1 : 3);
      for (int x = 0; x < 24; ++x) *image.at(i, x) = std::uint8_t(x < 9 ? 3 : 7);
      foci::data::write_png(pairs + "/" + part + "/" + std::to_string(i) + ".png", image);
    }
  }
  const std::vector<std::tuple<std::string, Words, std::size_t>> all = {
      {"text", {"--data", folder().file("measured.txt"), "--context", "9", "--sample", "0"}, 2},
      {"text",
       {"--data", folder().file("measured.txt"), "--context", "9", "--sample", "0", "--positions",
        "rotary"},
       2},
      {"sequences", {"--data", tsv}, 2},
      {"segments", {"--data", pairs, "--image", "16", "--patch", "4"}, 4},
  };
  for (const auto& [task, words, layers] : all) {
    SCOPED_TRACE(task + words.back());
    const std::string run = folder().file("measured-run");
    fs::remove_all(run);
    const Words train = {"train",        task,        "--run",   run,       "--dim",
                         "16",           "--depth",   "2",       "--heads", "2",
                         "--batch",      "4",         "--steps", "2",       "--metric",
                         "layer-change", "--threads", "1",       "--quiet"};
    ASSERT_EQ(call(train + words).status, 0);
    const Ran ran = call({"measure", run, "--json", "--threads", "1", "--batch", "3"});
    ASSERT_EQ(ran.status, 0) << ran.err;
    const auto one = ran.json().at("measured").at(0);
    ASSERT_EQ(one.at("layers").size(), layers);
    expect_sound(one);
    for (const auto& layer : one.at("layers")) {
      for (const char* name : {"concentration", "distance", "top_mass"})
        EXPECT_GT(layer.at(name).at("mean").get<double>(), 0) << name;
      EXPECT_GT(layer.at("tokens").at("cosine").at("n").get<int>(), 0);
    }
    EXPECT_GT(one.at("layers").at(1).at("metric").at("anisotropy").get<double>(), 1);
  }
}

/// The tensors of a call, with the mechanism of the flags.
Words tensors(const Words& more = {}) {
  return Words{"measure", golden_folder + "/layer-change-max.safetensors", "--threads", "1"} + more;
}

TEST(MeasureCommand, TensorsOfACall) {
  const std::string given = folder().file("answers.safetensors");
  const Words how = {"--metric", "layer-change", "--normalize", "mean"};
  const std::string in = golden_folder + "/layer-change-max.safetensors";
  const auto want =
      call(Words{"attend", "--in", in, "--out", given, "--json", "--dtype", "f32"} + how).json();
  const auto json = call(tensors(how + Words{"--json"})).json();
  const auto& layer = json.at("measured").at(0).at("layers").at(0);
  EXPECT_NEAR(layer.at("concentration").at("mean").get<double>(),
              want.at("concentration").get<double>(), 1e-5);
  EXPECT_NEAR(layer.at("effective_keys").at("mean").get<double>(),
              want.at("effective_keys").get<double>(), 1e-4);
  EXPECT_NE(layer.at("mechanism").get<std::string>().find("normalize=mean"), std::string::npos);
  EXPECT_NEAR(layer.at("metric").at("mean").get<double>(), 1, 1e-6);
  EXPECT_TRUE(json.at("out").is_null());
  EXPECT_TRUE(json.at("records").empty());
}

/// What it says and writes apart from where.
std::string trace_of(const Words& words) {
  std::error_code none;
  fs::remove_all(watched() + "/measure", none);
  const Ran ran = call(words);
  const std::string file = watched() + "/measure/measure.json";
  return std::to_string(ran.status) + ran.err + ran.out + (fs::exists(file) ? read(file) : "");
}

TEST(MeasureCommand, EveryFlagChangesSomething) {
  const Words run = measure(), full = tensors({"--metric", "key-covariance", "--prior", "3"});
  const Words change = tensors({"--metric", "layer-change"}),
              random = tensors({"--metric", "random"});
  const Words causal = full + Words{"--causal"};
  const Words decay = tensors({"--weighting", "decay", "--causal"});
  const std::map<std::string, std::pair<Words, Words>> all = {
      {"samples", {run, {"--samples", "11"}}},
      {"closely", {run, {"--closely", "4"}}},
      {"top", {run, {"--top", "2"}}},
      {"what", {run, {"--what", "tokens"}}},
      {"per", {run, {"--per", "head"}}},
      {"beside", {run, {"--beside", watched()}}},
      {"checkpoints", {run, {"--checkpoints"}}},
      {"data", {run, {"--data", "nowhere"}}},
      {"split", {run, {"--split", "train"}}},
      {"ema", {run, {"--ema"}}},
      {"out", {run, {"--out", folder().file("elsewhere")}}},
      {"device", {run, {"--device", "cuda"}}},
      {"quiet", {run, {"--quiet"}}},
      {"json", {run, {"--json"}}},
      {"metric", {change, {"--metric", "dot"}}},
      {"form", {change, {"--form", "distance"}}},
      {"normalize", {change, {"--normalize", "mean"}}},
      {"reduce", {change, {"--reduce", "median"}}},
      {"metric-grad", {change + Words{"--json"}, {"--metric-grad", "through"}}},
      {"scope", {causal, {"--scope", "sequence"}}},
      {"allow-leak", {causal + Words{"--scope", "sequence"}, {"--allow-leak"}}},
      {"ridge", {full, {"--ridge", "1"}}},
      {"prior", {full, {"--prior", "20"}}},
      {"period", {causal, {"--period", "2"}}},
      {"floor", {random, {"--floor", "0.6"}}},
      {"layer", {random, {"--layer", "1"}}},
      {"seed", {random, {"--seed", "5"}}},
      {"weighting", {change, {"--weighting", "relu2"}}},
      {"feature", {tensors({"--weighting", "linear"}), {"--feature", "exp"}}},
      {"rate", {decay, {"--rate", "0.3"}}},
      {"content", {decay, {"--content"}}},
      {"rescale", {tensors({"--weighting", "identity"}), {"--rescale", "l1"}}},
      {"scale", {change, {"--scale", "2"}}},
      {"causal", {change, {"--causal"}}},
  };
  // Tested elsewhere, or changes nothing.
  const std::set<std::string> elsewhere = {"text",     "tokenizer", "given",    "help",
                                           "threads",  "batch",     "pictures", "sample",
                                           "in-layer", "head",      "query"};
  std::map<Words, std::string> seen;
  for (const auto& flag : foci::cli::find_verb("measure")->flags) {
    const std::string name(flag.name);
    if (elsewhere.contains(name)) continue;
    ASSERT_TRUE(all.contains(name)) << "no change is listed for --" << name;
    const auto& [before, more] = all.at(name);
    if (!seen.contains(before)) seen[before] = trace_of(before);
    EXPECT_TRUE(seen[before] != trace_of(before + more)) << "--" << name << " changed nothing";
  }
}

TEST(MeasureCommand, BatchesChangeNothing) {
  const auto mean_of = [](const Words& more) {
    return call(measure(Words{"--json"} + more))
        .json()["measured"][0]["layers"][1]["concentration"]["mean"]
        .get<double>();
  };
  EXPECT_NEAR(mean_of({"--batch", "5"}), mean_of({}), 1e-6);
}

TEST(MeasureCommand, MistakesAreToldInOneLine) {
  const std::string empty = folder().file("no-run");
  fs::create_directories(empty);
  const std::vector<std::tuple<Words, int, std::string>> all = {
      {{"measure"}, 2, "measure needs a run, a model or tensors"},
      {{"measure", "nowhere"}, 1, "nowhere: no such file or folder"},
      {measure({"--what", "metrics"}), 2, "--what 'metrics' is no table; did you mean metric?"},
      {measure({"--metric", "dot"}), 2, "a run has its own mechanism"},
      {measure({"--text", "x"}), 2, "--text does not go with a run"},
      {measure({"--top", "0"}), 2, "--top 0 is not a size"},
      {measure({"--beside", "nowhere"}), 1, "nowhere/config.json"},
      {tensors({"--ema"}), 2, "--ema does not go with the tensors of a call"},
      {{"measure", empty, "--text", "x"}, 1, "holds no encoder.json"},
      {{"measure", empty}, 2, "a language model needs --text FILE to go over"},
      {{"measure", empty, "--text", "x", "--split", "test"}, 2, "--split does not go with a model"},
  };
  for (const auto& [words, status, says] : all) {
    const Ran ran = call(words);
    EXPECT_EQ(ran.status, status) << says << "\n" << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(says), std::string::npos) << says << "\n" << ran.err;
    EXPECT_LE(std::count(ran.err.begin(), ran.err.end(), '\n'), 2) << ran.err;
  }
}

}  // namespace
