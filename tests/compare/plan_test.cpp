// SPDX-License-Identifier: Apache-2.0
// The plan of a comparison: every flag changes what would be done, and what is wrong is told in one
// line before anything is.
#include "compare/compared.hpp"

#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
#include "cli/shell_words.hpp"
#include "cli/torch/compare_stages.hpp"

#include "thrown.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace {

using namespace train_test;

/// All that a comparison would do: its plan, its runs and the command lines of their steps.
std::string trace_of(const Words& words) {
  const auto verb = std::get<foci::cli::WithTorch>(foci::cli::parse(Words{"compare"} + words)).verb;
  const auto plan = foci::cli::plan_of(std::get<foci::cli::Compare>(verb));
  std::string trace = foci::cli::json_of(plan).dump();
  for (const auto& run : foci::cli::compare_runs(
           plan, {.out = "out", .data = "data", .data_sha256 = "sum", .steps = 9})) {
    trace += "\n" + run.folder;
    for (const auto& stage : run.stages) {
      trace += "\n" + stage.file;
      for (const std::string& word : stage.arguments) trace += " " + word;
    }
  }
  return trace;
}

/// A folder with a picture in it.
std::string frost() {
  const std::string path = folder().file("frost");
  fs::create_directories(path);
  foci::data::write_png(path + "/frost1.png", foci::data::Image(300, 300, 3));
  return path;
}

TEST(ComparePlans, FrostHasPictures) {
  for (const char* names : {"frost", "weather", "fog,all"}) {
    const std::string trace = trace_of({"--corruptions", names, "--frost", frost()});
    EXPECT_NE(trace.find(" --frost " + frost()), std::string::npos) << trace;
  }
}

TEST(ComparePlans, EveryFlagChangesWhatIsDone) {
  // Where and how it runs, tested above; and what is told beside the result.
  const std::set<std::string> elsewhere = {"plan",   "checkpoint", "out",   "jobs",
                                           "json",   "help",       "quiet", "threads",
                                           "device", "patience",   "frost"};
  const std::map<std::string, std::string> values = {
      {"task", "listops"},     {"data", "other"},
      {"mechanisms", "dot"},   {"budget", "1h"},
      {"model", "dim=8"},      {"attack", "fgsm"},
      {"norm", "l2"},          {"eps", "4"},
      {"corruptions", "fog"},  {"severity", "1,5"},
      {"seeds", "2"},          {"steps", "11"},
      {"judge-samples", "77"}, {"iterations", "7"},
      {"queries", "7"},        {"check", "7"},
      {"maps", "0"},           {"attack-samples", "7"},
      {"seed", "7"},           {"corrupt-samples", "7"},
      {"measure-samples", "7"}};
  for (const auto& flag : foci::cli::find_verb("compare")->flags) {
    const std::string name(flag.name);
    if (elsewhere.contains(name)) continue;
    ASSERT_TRUE(values.contains(name)) << "no change is listed for --" << name;
    EXPECT_TRUE(trace_of({}) != trace_of({"--" + name, values.at(name)})) << name;
  }
  EXPECT_EQ(trace_of({}), trace_of({"--plan", FOCI_SOURCE_DIR "/presets/compare.json"}));
}

/// The words of a command that a page shows.
Words typed(const std::string& command) {
  Words words = foci::cli::shell_words(command);
  EXPECT_TRUE(words.size() > 2 && words[0] == "foci") << command;
  words.erase(words.begin());
  return words;
}

/// What a plan decides, whoever wrote it.
std::string decided(const Words& words) {
  const auto verb = std::get<foci::cli::WithTorch>(foci::cli::parse(words)).verb;
  return foci::cli::json_of(foci::cli::plan_of(std::get<foci::cli::Compare>(verb))).dump();
}

TEST(ComparePlans, TheCommandThatDoesItAgainSaysTheSame) {
  const std::vector<Words> all = {
      {"--steps", "7"},
      {"--budget", "1h", "--mechanisms", "dot,layer-change:form=distance", "--seed", "3"},
      {"--model", "vit_micro dim=32 metric-layers=1:", "--steps", "2", "--data", "it's here"},
      {"--task", "listops", "--steps", "3"},
      {"--task", "series", "--data", "waves", "--severity", "1,5"},
      {"--corruptions", "fog,frost", "--frost", frost(), "--attack", "none"}};
  for (const Words& words : all) {
    auto plan = train_test::plan_from(words);
    const std::string command = foci::cli::flags_command(plan, "");
    EXPECT_EQ(decided(typed(command)), decided(Words{"compare"} + words)) << command;
  }
  auto plan = train_test::plan_from({"--data", "made-here", "--steps", "2"});
  plan.called = "launch -n 2 -- compare";
  plan.typed["device"] = "cuda";
  EXPECT_EQ(foci::cli::again_command(plan, "my runs/a"),
            "foci launch -n 2 -- compare --plan 'my runs/a/plan.json' --device cuda --out again");
  const std::string flags = foci::cli::flags_command(plan, "foci data make images --out x");
  EXPECT_TRUE(flags.starts_with("foci data make images --out x && foci launch -n 2 -- compare "))
      << flags;
  EXPECT_NE(flags.find(" --data made-images "), flags.npos) << flags;
  EXPECT_TRUE(flags.ends_with(" --device cuda --out again")) << flags;
}

TEST(ComparePlans, OfTrainedRunsNothingIsSaidThatTheyHaveThemselves) {
  auto plan = train_test::plan_from({"--data", "made-here", "--steps", "2"});
  plan.checkpoints = {"a", "b"};
  plan.words["checkpoint"] = "a,b";
  const auto json = foci::cli::json_of(plan);
  for (const char* flag : {"mechanisms", "seeds", "budget", "steps", "train"})
    EXPECT_FALSE(json.contains(flag)) << flag;
  const std::string command = foci::cli::flags_command(plan, "");
  for (const char* flag : {" --mechanisms ", " --seeds ", " --budget ", " --steps ", " --model "})
    EXPECT_EQ(command.find(flag), command.npos) << command;
  EXPECT_NE(command.find(" --checkpoint a,b "), command.npos) << command;
  EXPECT_NO_THROW(foci::cli::parse(typed(command)));
}

struct Refused {
  Words words;
  int status;
  std::string says;
};

void expect_refused(const std::vector<Refused>& all, const std::string& out) {
  for (const Refused& one : all) {
    Words words = {"compare", "--out", out};
    const bool brings = one.words[0] == "--data" || one.words[0] == "--task";
    if (!brings) words = words + Words{"--data", images()};
    const Ran ran = call(words + one.words);
    EXPECT_EQ(ran.status, one.status) << one.says << ran.out;
    EXPECT_NE(ran.err.find(one.says), std::string::npos) << ran.err;
  }
  EXPECT_FALSE(fs::exists(out)) << "nothing may be left of what was refused";
}

TEST(ComparePlans, SaysWhatNothingCouldBeDoneWith) {
  expect_refused(
      {
          {{"--corruptions", "fog", "--frost", frost()},
           2,
           "--frost is for the corruption frost, which --corruptions fog has not\n"},
          {{"--eps", "banana"}, 2, "--eps 'banana' is no number\n"},
          {{"--eps", "1,-2"}, 2, "--eps -2 is below 0\n"},
          {{"--task", "text", "--data", images(), "--attack", "fgsm"},
           2,
           "compare --task text has no --attack; it is for image\n"},
          {{"--task", "text", "--data", images(), "--severity", "5"},
           2,
           "compare --task text has no --severity; it is for image, series\n"},
          {{"--task", "series", "--data", images(), "--judge-samples", "9"},
           2,
           "compare --task series has no --judge-samples; it is for image\n"},
          {{"--task", "listops", "--maps", "2"},
           2,
           "compare --task listops has no --maps; it is for image, segment\n"},
          {{"--task", "segment", "--data", images(), "--corruptions", "fog"},
           2,
           "compare --task segment has no --corruptions; it is for image, text, series\n"},
          {{"--task", "segment", "--data", images(), "--frost", frost()},
           2,
           "compare --task segment has no --frost; it is for image\n"},
      },
      folder().file("useless"));
}

TEST(ComparePlans, SaysWhatIsWrong) {
  const std::string out = folder().file("wrong");
  const std::string odd = folder().file("odd.json");
  write(odd, R"({"seedz": 3})");
  const std::vector<Refused> all = {
      {{"--mechanisms", "dot,layer-chnage"},
       2,
       "--mechanisms does not know 'layer-chnage'; did you mean layer-change?"},
      {{"--mechanisms", "dot,dot"}, 2, "--mechanisms names dot twice"},
      {{"--mechanisms", "dot:ridge=a"}, 2, "--ridge 'a' is not a finite number"},
      {{"--mechanisms", "dot:riddge=1"}, 2, "'riddge' is no flag of a mechanism; did you mean rid"},
      {{"--seeds", "0"}, 2, "--seeds 0 compares nothing; it needs 1 or more"},
      {{"--task", "imag"}, 2, "--task does not know 'imag'; did you mean image?"},
      {{"--task", "text"}, 2, "compare --task text needs --data"},
      {{"--data", "fashion-minst"},
       2,
       "--data 'fashion-minst' is no folder and no known set; did you mean fashion-mnist?"},
      {{"--attack", "apgd-c"}, 2, "--attack does not know 'apgd-c'; did you mean apgd-ce?"},
      {{"--corruptions", "fogg"}, 2, "--corruptions does not know 'fogg' for --task image; did yo"},
      {{"--corruptions", "frost"}, 2, "frost needs pictures of it: --frost FOLDER"},
      {{"--corruptions", "fog,weather"}, 2, "frost needs pictures of it: --frost FOLDER"},
      {{"--corruptions", "frost", "--frost", "nowhere"}, 1, "nowhere: "},
      {{"--severity", "9"}, 2, "--severity does not know '9'"},
      {{"--severity", "3,foo"}, 2, "--severity does not know 'foo'"},
      {{"--model", "dimm=3"}, 2, "'dimm' is no flag of a run; did you mean dim?"},
      {{"--model", "dim=16,depth=2"},
       2,
       "\nfoci: hint: spaces stand between flags: --model 'dim=16"},
      {{"--metrics", "dot"}, 2, "compare has no flag --metrics; did you mean --mechanisms?\n"},
      {{"--batch", "8"}, 2, "compare has no flag --batch; did you mean --model 'batch=...'?\n"},
      {{images()},
       2,
       "compare does not know what to do with '" + images() + "'; did you mean --data"},
      {{"nothing-here"}, 2, "compare does not know what to do with 'nothing-here'\n"},
      {{"--model", "seed=3"}, 2, "seed is not for the model's words"},
      {{"--budget", "soon"}, 2, "--budget 'soon' is no time"},
      {{"--plan", odd}, 1, "'seedz' is no flag of a plan; did you mean seeds?"},
      {{"--plan", "nowhere"}, 1, "nowhere: is no file, and there is no presets/nowhere.json"},
      {{"--plan", "nowhere.json"}, 1, "is no file, and there is no presets/nowhere.json\n"},
      {{"--checkpoint", "nowhere", "--seeds", "5"}, 2, "--seeds does not go with --checkpoint"},
      {{"--checkpoint", "nowhere", "--budget", "5m"}, 2, "--budget does not go with --checkpoint"},
      {{"--checkpoint", "nowhere", "--mechanisms", "dot"},
       2,
       "--mechanisms does not go with --checkpoint\nfoci: hint: nothing is trained; "},
      {{"--checkpoint", "nowhere"}, 1, "nowhere: has no whole config.json; is it a run?"},
      {{"--jobs", "0"}, 2, "--jobs 0 is not a size"},
  };
  expect_refused(all, out);
  EXPECT_EQ(call({"report"}).status, 2);
  EXPECT_EQ(call({"report", "nowhere"}).status, 1);
  EXPECT_EQ(call({"reproduce"}).status, 2);
}

TEST(CompareFiles, AStageThatHoldsSomethingElseIsNamed) {
  const auto fault = [](const std::string& stage) {
    foci::cli::RunFound found;
    return foci::thrown<foci::InvalidArgument>(
        [&] { add_found(found, foci::cli::Json::parse(stage)); });
  };
  EXPECT_EQ(fault(R"({"records":[],"right":{"top1":1}})"),
            "'right' holds something else than digits");
  EXPECT_EQ(fault(R"({"records":[],"maps":[1]})"), "'maps' holds something else than objects");
  EXPECT_EQ(fault(R"({"records":[1]})"), "not a JSON object");
  const std::string run = folder().file("spoiled");
  fs::create_directories(run + "/stages");
  std::ofstream(run + "/stages/eval.json") << R"({"records":[1]})";
  EXPECT_EQ(foci::thrown<foci::FileError>([&] { foci::cli::found_in(run); }),
            run + "/stages/eval.json: not a JSON object");
}

/// A million brackets need no stack.
TEST(CompareFiles, DepthIsNoDanger) {
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  const std::string run = folder().file("deep"), preset = run + "/preset.json";
  fs::create_directories(run);
  std::ofstream(preset) << "{\"dim\":" << deep << "}";
  foci::thrown<foci::FileError>([&] { foci::cli::resolved_words("images", {{"preset", preset}}); });
  std::ofstream(run + "/config.json") << "{\"task\":\"images\",\"flags\":{\"dim\":" << deep << "}}";
  EXPECT_LT(foci::cli::run_facts(run).words.at("dim").size(), 1000u);
}

}  // namespace
