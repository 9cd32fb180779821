// SPDX-License-Identifier: Apache-2.0
// foci train and foci eval: they learn, say what they did, take presets; every flag changes
// something, and every mistake is one line.
#include "train/child.hpp"

#include "cli/pages.hpp"

#include <foci/record.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace {

using namespace train_test;

TEST(Train, LearnsAndIsJudged) {
  const std::string run = folder().file("learns");
  const Ran ran = call(tiny(run) + Words{"--steps", "0", "--epochs", "20", "--learning-rate",
                                         "0.003", "--patch", "7", "--json", "--ema", "0.9"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto result = ran.json();
  EXPECT_EQ(result.at("steps"), 240);
  EXPECT_EQ(result.at("finished"), true);
  EXPECT_GT(result.at("top1").get<double>(), 0.6);
  EXPECT_EQ(result.at("top5"), 1);
  const auto judged = call({"eval", run, "--json"}).json();
  EXPECT_EQ(judged.at("top1"), result.at("top1"));
  EXPECT_EQ(judged.at("count"), 48);
  EXPECT_EQ(call({"eval", run, "--ema", "--json"}).json().at("top1"), result.at("ema_top1"));
  EXPECT_EQ(call({"eval", run, "--split", "train", "--json"}).json().at("count"), 240);
  EXPECT_NE(call({"eval", run}).out.find(" over 48 images of test ("), std::string::npos);
  const auto records = foci::read_records(run + "/records.jsonl");
  ASSERT_FALSE(records.empty());
  EXPECT_EQ(records.back().command, "foci eval " + run);
  EXPECT_EQ(records.back().n, 48);
  const auto same = [&](const foci::Record& r) { return r.name == "top1" && r.n == 48; };
  const auto first = std::find_if(records.begin(), records.end(), same);
  ASSERT_NE(first, records.end());
  EXPECT_EQ(first->value, result.at("top1").get<double>());
  EXPECT_EQ(first->command.find("foci train images --"), 0u) << first->command;
  EXPECT_EQ(records.size(), result.at("records").size() + 4 * judged.at("records").size());
  const auto config = nlohmann::json::parse(read(run + "/config.json"));
  EXPECT_EQ(config.at("flags").at("metric"), "layer-change");
  EXPECT_EQ(config.at("flags").at("learning-rate"), 0.003);
  EXPECT_EQ(config.at("flags").at("momentum"), 0.9);  // what nobody said is written out too
  EXPECT_EQ(config.at("data").at("classes"), 4);
  EXPECT_TRUE(nlohmann::json::parse(read(run + "/env.json")).contains("machine"));
  const std::string text = call({"eval", run}).out;
  EXPECT_NE(text.find("top-1 "), text.npos) << text;
  EXPECT_EQ(text.find("top-5"), text.npos) << "four classes: all are among the first five";
}

TEST(Train, TakesAPresetThatFlagsOverrule) {
  const std::string preset = folder().file("p.json"), run = folder().file("preset");
  write(preset, R"({"data": ")" + images() + R"(", "dim": 16, "depth": 1, "heads": 2,
                    "patch": 14, "batch": 20, "steps": 2, "learning-rate": 0.5})");
  const Ran ran = call(
      {"train", "images", "--preset", preset, "--run", run, "--quiet", "--learning-rate", ".001"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto flags = nlohmann::json::parse(read(run + "/config.json")).at("flags");
  EXPECT_EQ(flags.at("depth"), 1);
  EXPECT_EQ(flags.at("learning-rate"), 0.001);
  const std::map<std::string, std::string> tasks = {{"wikitext-2", "text"},
                                                    {"shakespeare", "text"},
                                                    {"listops", "sequences"},
                                                    {"uea", "sequences"},
                                                    {"camvid", "segments"}};
  for (const auto& entry : fs::directory_iterator(FOCI_SOURCE_DIR "/presets")) {
    if (entry.path().stem().string().starts_with("compare")) continue;  // plans of foci compare
    const auto task = tasks.find(entry.path().stem().string());
    const Ran known = call({"train", task == tasks.end() ? "images" : task->second, "--preset",
                            entry.path().string(), "--data", "nowhere", "--run", run + "x"});
    EXPECT_EQ(known.err, "foci: nowhere: is no folder\n") << entry.path();
  }
}

/// What a run does apart from times: its curve, what it kept, what it said.
std::string trace_of(const Words& more) {
  const std::string run = folder().file("trace");
  fs::remove_all(run);
  const Ran ran = call(tiny(run) + more);
  std::string all = std::to_string(ran.status) + ran.err + curve(run);
  std::error_code none;  // a run that was refused has none
  for (const auto& entry : fs::recursive_directory_iterator(run + "/checkpoints", none))
    all += entry.path().filename().string() + " ";
  return all;
}

struct Change {
  Words before, flag;
};

/// Of the data, the model and its mechanism.
std::map<std::string, Change> model_changes() {
  const Words covariance = {"--metric", "key-covariance"};
  return {
      {"split", {{}, {"--split", "train"}}},
      {"weights", {{}, {"--weights", "no.safetensors"}}},
      {"init", {{"--metric", "learned"}, {"--init", "random"}}},
      {"running-momentum", {{"--scope", "running"}, {"--running-momentum", "0.1"}}},
      {"scope", {{}, {"--scope", "prefix"}}},
      {"normalize", {{}, {"--normalize", "mean"}}},
      {"reduce", {{}, {"--reduce", "median"}}},
      {"form", {{}, {"--form", "distance"}}},
      {"metric", {{}, {"--metric", "dot"}}},
      {"metric-layers", {{}, {"--metric-layers", ":1"}}},
      {"metric-grad", {{}, {"--metric-grad", "through"}}},
      {"ridge", {covariance, {"--ridge", "0.5"}}},
      {"prior", {covariance, {"--prior", "3"}}},
      {"period", {covariance + Words{"--scope", "prefix"}, {"--period", "2"}}},
      {"floor", {{"--metric", "random"}, {"--floor", "0.9"}}},
      {"weighting", {{}, {"--weighting", "relu2"}}},
      {"rescale", {{"--weighting", "relu2"}, {"--rescale", "l1"}}},
      {"feature", {{"--weighting", "linear"}, {"--feature", "relu"}}},
      {"scale", {{}, {"--scale", "1"}}},
      {"model", {{}, {"--model", "vit_mirco"}}},
  };
}

std::map<std::string, Change> changes() {
  const Words deit = {"--augment", "deit"}, sgd = {"--optimizer", "sgd"};
  std::map<std::string, Change> all = {
      {"beta1", {{}, {"--beta1", "0.5"}}},
      {"beta2", {{}, {"--beta2", "0.5"}}},
      {"epsilon", {{}, {"--epsilon", "0.1"}}},
      {"momentum", {sgd, {"--momentum", "0.1"}}},
      {"clip", {{}, {"--clip", "0.01"}}},
      {"power", {{"--schedule", "poly"}, {"--power", "3"}}},
      {"schedule", {{}, {"--schedule", "constant"}}},
      {"optimizer", {{}, sgd}},
      {"first-rate", {{"--warmup", "2"}, {"--first-rate", "0.1"}}},
      {"augment", {{}, {"--augment", "none"}}},
      {"device", {{}, {"--device", "cuda"}}},
      {"quiet", {{}, {"--quiet=false"}}},
      {"crop-share", {{}, {"--crop-share", "0.5"}}},
      {"accumulate", {{}, {"--accumulate", "2"}}},
      {"precision", {{}, {"--precision", "bf16"}}},
      {"keep", {{"--save-every", "1"}, {"--keep", "1"}}},
      {"save-every", {{}, {"--save-every", "1"}}},
      {"evaluate-every", {{}, {"--evaluate-every", "1"}}},
      {"steps", {{}, {"--steps", "1"}}},
      {"epochs", {{"--steps", "0", "--epochs", "1"}, {"--epochs", "2"}}},
  };
  for (const char* flag : {"area", "magnitude", "jitter", "erasing"})
    all[flag] = {deit, {"--" + std::string(flag), "0.9"}};
  for (const char* flag : {"learning-rate", "last-rate", "weight-decay", "ema", "drop-path",
                           "mixup", "cutmix", "label-smoothing", "flip"}) {
    all[flag] = {{}, {"--" + std::string(flag), "0.7"}};
  }
  for (const char* flag : {"warmup", "seed", "shift", "depth", "mlp-ratio"})
    all[flag] = {{}, {"--" + std::string(flag), "1"}};
  all["judge-count"] = {{}, {"--judge-count", "7"}};
  all["repeats"] = {{}, {"--repeats", "3"}};
  for (const char* flag : {"image", "batch"}) all[flag] = {{}, {"--" + std::string(flag), "14"}};
  for (const char* flag : {"dim", "heads", "patch"})
    all[flag] = {{}, {"--" + std::string(flag), "4"}};
  all.merge(model_changes());
  return all;
}

TEST(Train, EveryFlagChangesSomething) {
  // Tested elsewhere: files, and what must change nothing.
  const std::set<std::string> elsewhere = {"data", "run",     "preset",  "resume",  "json",
                                           "help", "threads", "workers", "patience"};
  const auto all = changes();
  std::map<Words, std::string> seen;
  for (const auto& flag : foci::cli::find_verb("train")->flags) {
    const std::string name(flag.name);
    if (elsewhere.contains(name) || !foci::cli::belongs(name, "images")) continue;
    ASSERT_TRUE(all.contains(name)) << "no change is listed for --" << name;
    const auto& [before, more] = all.at(name);
    if (!seen.contains(before)) seen[before] = trace_of(before);
    EXPECT_TRUE(seen[before] != trace_of(before + more)) << "--" << name << " changed nothing";
  }
  EXPECT_EQ(trace_of({}), trace_of({"--workers", "3"}));
}

struct Bad {
  Words words;
  int status;
  std::string says;
};

std::string wrong_labels() {
  const std::string path = folder().file("labels");
  fs::copy(images(), path);
  fs::remove(path + "/classes.txt");
  std::string bytes = read(path + "/t10k-labels-idx1-ubyte");
  bytes[8 + 3] = 9;
  write(path + "/t10k-labels-idx1-ubyte", bytes);
  return path;
}

TEST(Train, MistakesAreToldInOneLine) {
  const std::string run = folder().file("bad"), typo = folder().file("typo.json"),
                    text = folder().file("text.json");
  write(typo, R"({"lerning-rate": 1})");
  write(text, R"({"batch": "many"})");
  const Words base = tiny(run);
  const std::vector<Bad> all = {
      {{"train"}, 2, "train needs to know what: foci train images"},
      {{"train", "imags"}, 2, "train cannot learn 'imags'; did you mean images?"},
      {{"train", "images"}, 2, "train needs --run FOLDER"},
      {{"train", "images", "--run", run}, 2, "train needs --data"},
      {{"train", "images", "--run", run, "--resume"}, 2, "bad: there is no run to resume"},
      {base + Words{"--dim", "17", "--heads", "3"}, 2,
       "dim 17 is no multiple of 3 heads: take one"},
      {base + Words{"--data", "nowhere"}, 1, "nowhere: is no folder"},
      {base + Words{"--data", "cifar-10"}, 1, "foci data get cifar-10 brings it"},
      {base + Words{"--preset", "none"}, 1, "none: is no file, and there is no presets/none.json"},
      {base + Words{"--preset", typo}, 1, "'lerning-rate' is no flag of a run; did you mean lear"},
      {base + Words{"--preset", text}, 1, "text.json: --batch 'many' is not a whole number"},
      {base + Words{"--metric-layers", "1-3"}, 2, "--metric-layers '1-3' is not first:last"},
      {base + Words{"--metric-layers", "1:5"}, 2, "metric layers 1:5 of a model of 2 layers"},
      {base + Words{"--ridge", "1"}, 2, "ridge"},
      {base + Words{"--batch", "0"}, 2, "--batch 0 is not a size"},
      {base + Words{"--batch", "1000"}, 2, "240 images make no step of 1000"},
      {base + Words{"--model", "vit_mirco"}, 2, "did you mean vit_micro?"},
      {base + Words{"--model", "segmenter_micro"}, 2,
       "segmenter_micro is for pixels; a classifier"},
      {base + Words{"--patch", "5", "--image", "28"}, 2, "images of 28 pixels in patches of 5"},
      {base + Words{"--split", "valid"}, 1, "has no valid split that is known"},
      {base + Words{"--data", wrong_labels()}, 1,
       "t10k-images-idx3-ubyte #3: class '9' is none of the 4 of the training set"},
      {base + Words{"--weights", "no.safetensors"}, 1, "no.safetensors: "},
      {{"eval"}, 2, "eval needs the folder of a run"},
      {{"eval", "nowhere"}, 1, "nowhere/config.json: is not there; is it a run?"},
  };
  for (const Bad& bad : all) {
    fs::remove_all(run);
    const Ran ran = call(bad.words);
    EXPECT_EQ(ran.status, bad.status) << bad.says << "\n" << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(bad.says), std::string::npos) << bad.says << "\n" << ran.err;
    EXPECT_LE(std::count(ran.err.begin(), ran.err.end(), '\n'), 2) << ran.err;
  }
}

TEST(Train, ResumeSaysWhereItBegins) {
  const std::string run = folder().file("begun");
  Words loud = tiny(run) + Words{"--resume"};
  std::erase(loud, "--quiet");
  const Ran first = call(loud);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_TRUE(first.err.starts_with(run + ": nothing to resume; begins\n")) << first.err;
  EXPECT_EQ(call(loud).err.find("nothing to resume"), std::string::npos);
  const Ran quiet = call(tiny(folder().file("begun-quietly")) + Words{"--resume"});
  EXPECT_EQ(quiet.err, "");
}

/// Another set where the run's lay: a word, and a doubt at every Record, of the attack too.
TEST(Train, DataThatChangedIsADoubt) {
  const std::string run = folder().file("moved"), data = folder().file("moved-data");
  const Words make = {"data", "make", "images", "--out", data, "--quiet", "--count"};
  ASSERT_EQ(call(make + Words{"240"}).status, 0);
  ASSERT_EQ(call(tiny(run) + Words{"--data", data}).status, 0);
  const Words eval = {"eval", run, "--quiet", "--json", "--threads", "1"};
  const auto doubted = [](const Ran& ran) {
    std::size_t count = 0;
    const auto records = ran.json().at("records");
    for (const auto& record : records) {
      for (const auto& flag : record.at("flags")) count += flag.at("name") == "other-data" ? 1 : 0;
    }
    return count == records.size() && count > 0;
  };
  const Ran same = call(eval);
  EXPECT_EQ(same.err, "");
  EXPECT_FALSE(doubted(same));
  ASSERT_EQ(call(make + Words{"60"}).status, 0);
  const Words attack = {"attack", run,       "--attack", "fgsm",  "--check",
                        "0",      "--quiet", "--json",   "--out", folder().file("moved-attack")};
  for (const Words& words : {eval, eval + Words{"--corrupt", "fog"}, attack}) {
    const Ran ran = call(words);
    ASSERT_EQ(ran.status, 0) << ran.err;
    EXPECT_NE(ran.err.find("moved-data has changed since the run was trained\n"), std::string::npos)
        << ran.err;
    EXPECT_TRUE(doubted(ran)) << ran.out;
  }
  const Ran meant = call(eval + Words{"--data", images()});
  EXPECT_EQ(meant.err, "");
  EXPECT_FALSE(doubted(meant));
}

TEST(Train, ARunGoesOnWithItsOwnFlagsAndData) {
  const std::string run = folder().file("own"), other = folder().file("fewer");
  ASSERT_EQ(call(tiny(run)).status, 0);
  EXPECT_NE(call(tiny(run)).err.find(run + " holds a run already"), std::string::npos);
  const Words resume = {"train", "images", "--run", run, "--resume"};
  const Ran flag = call(resume + Words{"--learning-rate", "0.1"});
  EXPECT_EQ(flag.status, 2);
  EXPECT_TRUE(flag.err.starts_with("foci: --learning-rate 0.1: the run has 0.001\n")) << flag.err;
  EXPECT_NE(call({"eval", run, "--ema"}).err.find("the run keeps no average"), std::string::npos);
  auto config = nlohmann::json::parse(read(run + "/config.json"));
  config["data"]["train"] = 241;
  write(run + "/config.json", config.dump());
  EXPECT_NE(call(resume).err.find("began with data whose train is 241; it is 240 now"),
            std::string::npos);
  write(run + "/config.json", "{");
  EXPECT_NE(call(resume).err.find("config.json: is not the configuration of a run"),
            std::string::npos);
  fs::remove_all(run + "/checkpoints");
  config["data"]["train"] = 240;
  write(run + "/config.json", config.dump());
  EXPECT_NE(call({"eval", run}).err.find("has no whole checkpoint"), std::string::npos);
}

TEST(Train, ALossThatIsNotFiniteEndsTheRun) {
  const std::string run = folder().file("lost");
  const Ran ran = call(tiny(run) + Words{"--learning-rate", "1e30", "--save-every", "1"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_TRUE(ran.err.starts_with("foci: step 2: the loss is ")) << ran.err;
  EXPECT_NE(ran.err.find("; first not finite: the output of "), std::string::npos) << ran.err;
  EXPECT_TRUE(fs::exists(checkpoint(run, 1) + "/training.safetensors"));
}

}  // namespace
