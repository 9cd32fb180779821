// SPDX-License-Identifier: Apache-2.0
// foci compare in several processes: runs are shared out, none is done twice, those of a rank that
// is lost are others', and the results are those of one process.
#include "compare/compared.hpp"
#include "dist/ranks.hpp"

#include "cli/torch/compare_sign.hpp"

#include <map>
#include <memory>
#include <set>

namespace {

using namespace dist_test;
using nlohmann::json;

/// Two mechanisms, two seeds: four runs of a second or two.
Words shared(const std::string& out, const std::string& steps = "160") {
  return {"compare",
          "--data",
          images(),
          "--out",
          out,
          "--mechanisms",
          "dot,flat",
          "--seeds",
          "2",
          "--steps",
          steps,
          "--attack",
          "none",
          "--maps",
          "0",
          "--jobs",
          "1",
          "--corruptions",
          "none",
          "--threads",
          "1",
          "--model",
          "dim=16 depth=2 heads=2 patch=14 batch=20",
          "--quiet",
          "--patience",
          "20",
          "--measure-samples",
          "0"};
}

/// Run -> who had it last: "rank 1".
std::map<std::string, std::string> owners_of(const std::string& out) {
  std::map<std::string, std::string> owners;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(out + "/runs", none)) {
    const std::string text = read(entry.path().string() + "/claim");
    if (!text.empty()) owners[entry.path().string()] = text.substr(0, text.find(" on "));
  }
  return owners;
}

/// A run that this rank trains just now; empty after a minute.
std::string trained_by(const std::string& out, const std::string& rank) {
  for (int wait = 0; wait < 6000; ++wait, ::usleep(10000)) {
    for (const auto& [run, owner] : owners_of(out)) {
      if (owner == rank && lines_of(run) > 16) return run;
    }
  }
  return {};
}

/// The comparison by one process, whose timing the others take over.
const std::string& alone() {
  static const std::string out = [] {
    const std::string path = folder().file("compared-alone");
    const Ran ran = call(shared(path));
    EXPECT_EQ(ran.status, 0) << ran.err;
    return path;
  }();
  return out;
}

std::string timed_folder(const std::string& name) {
  const std::string out = folder().file(name);
  fs::create_directories(out);
  fs::copy_file(alone() + "/timing.json", out + "/timing.json");
  return out;
}

/// The runs of a comparison that is to come, each of which waits as long as this lives: nobody
/// finishes one before all ranks have begun. Nothing may read the claims meanwhile.
class Held {
 public:
  explicit Held(const std::string& out) {
    for (const auto& [run, owner] : owners_of(alone())) {
      const std::string folder = out + "/runs/" + fs::path(run).filename().string();
      fs::create_directories(folder);
      claims_.push_back(std::make_unique<foci::cli::Hold>(folder + "/claim", "held by a test"));
    }
  }
  std::size_t runs() const { return claims_.size(); }

 private:
  std::vector<std::unique_ptr<foci::cli::Hold>> claims_;
};

/// Waits until rank 0 has given runs to so many others, a minute at most.
std::size_t others_with_runs(const std::string& out, std::size_t wanted) {
  std::set<std::string> names;
  for (int wait = 0; wait < 6000 && names.size() < wanted; ++wait, ::usleep(10000)) {
    const json job = json::parse(read(out + "/ranks/job.json"), nullptr, false);
    if (!job.is_object() || !job.contains("given")) continue;
    names.clear();
    for (const json& name : job.at("given")) names.insert(name.get<std::string>());
  }
  return names.size();
}

TEST(CompareRanks, ShareTheRunsAndFindTheSame) {
  const std::string out = folder().file("compared-by-three");
  auto held = std::make_unique<Held>(out);
  ASSERT_EQ(held->runs(), 4u);
  const Job job = start_job(shared(out), 3, "compare");
  EXPECT_EQ(others_with_runs(out, 2), 2u) << read(folder().file("compare0.err"));
  held.reset();
  for (int rank = 0; rank < 3; ++rank) {
    const Ran ran = job.finish(rank);
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(ran.out.empty(), rank > 0) << ran.out;
  }
  EXPECT_EQ(values_of(out), values_of(alone()));
  EXPECT_EQ(results_of(out).at("state"), "done");
  EXPECT_EQ(results_of(out).at("environment").at("runs at once"),
            "1, each with 1 thread, on each of 3 ranks");
  EXPECT_EQ(results_of(out).at("command").get<std::string>().find("foci launch -n 3 -- compare "),
            0u);
  EXPECT_EQ(results_of(out).at("reproduce"),
            "foci launch -n 3 -- compare --plan " + out + "/plan.json --out again");
  std::set<std::string> at_work;
  for (const auto& [run, owner] : owners_of(out)) {
    at_work.insert(owner);
    EXPECT_EQ(lines_of(run), 160u) << run;  // a second time would add lines
  }
  EXPECT_EQ(at_work, (std::set<std::string>{"rank 0", "rank 1", "rank 2"}));
  EXPECT_EQ(read(out + "/records.jsonl").size() > 0, true);
  const Ran again = call(shared(out));
  EXPECT_NE(again.out.find("4 runs, all there already, 160 steps each"), again.out.npos)
      << again.out;
}

TEST(CompareRanks, ARankThatIsKilledLeavesItsRunToTheOthers) {
  const std::string out = timed_folder("compared-killed");
  Words words = shared(out);
  std::erase(words, "--quiet");
  const pid_t launcher = start_launch(Words{"-n", "2", "--"} + words, "compare");
  const std::string run = trained_by(out, "rank 1");
  ASSERT_FALSE(run.empty()) << read(folder().file("compare.err"));
  const auto children = children_of(launcher);
  ASSERT_EQ(children.size(), 2u);
  ::kill(children[1], SIGKILL);
  const Ran ran = finish(launcher, "compare");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.err.find("foci: rank 1 was ended by signal 9 (Killed: by hand, or for want of "
                         "memory); all others go on\n"),
            ran.err.npos)
      << ran.err;
  EXPECT_NE(ran.err.find(" is lost; others take its runs\n"), ran.err.npos) << ran.err;
  EXPECT_NE(ran.out.find("4 runs, 160 steps each (13 epochs); "), ran.out.npos) << ran.out;
  EXPECT_EQ(owners_of(out).at(run), "rank 0");
  EXPECT_EQ(values_of(out), values_of(alone()));
}

TEST(CompareRanks, ARankThatHangsIsGivenUpAndNothingIsDoneTwice) {
  const std::string out = timed_folder("compared-hanging");
  const Job job = start_job(shared(out) + Words{"--patience", "4"}, 2, "compare");
  const std::string run = trained_by(out, "rank 1");
  ASSERT_FALSE(run.empty()) << read(folder().file("compare0.err")) +
                                   read(folder().file("compare1.err"));
  ::kill(job.children[1], SIGSTOP);  // the run itself goes on, and who takes it over waits for that
  const Ran lead = job.finish(0);
  EXPECT_EQ(lead.status, 0) << lead.err;
  EXPECT_NE(lead.err.find(" is lost; others take its runs\n"), lead.err.npos) << lead.err;
  EXPECT_EQ(lines_of(run), 160u);
  EXPECT_EQ(values_of(out), values_of(alone()));
  ::kill(job.children[1], SIGCONT);
  const Ran other = job.finish(1);
  EXPECT_EQ(other.status, 1);
  EXPECT_EQ(other.err.find("foci: rank 0 has given up rank 1 on "), 0u) << other.err;
}

TEST(CompareRanks, WithoutRankZeroAllSaveAndTheNextCallGoesOn) {
  const std::string out = timed_folder("compared-headless");
  const Job job = start_job(shared(out), 2, "compare");
  ASSERT_FALSE(trained_by(out, "rank 1").empty())
      << read(folder().file("compare0.err")) + read(folder().file("compare1.err"));
  ::kill(job.children[0], SIGKILL);
  EXPECT_EQ(job.finish(0).status, -SIGKILL);
  const Ran other = job.finish(1);
  EXPECT_EQ(other.status, 1);
  EXPECT_EQ(other.err.find("foci: rank 0 is lost: no sign of life for "), 0u) << other.err;
  EXPECT_NE(other.err.find("; what is done stays, and the same command goes on\n"), other.err.npos)
      << other.err;
  ASSERT_EQ(call(shared(out)).status, 0);
  EXPECT_EQ(values_of(out), values_of(alone()));
}

TEST(CompareRanks, ATermToRankZeroSavesEverywhereAndToAnotherSendsItHome) {
  const std::string out = timed_folder("compared-told");
  const Job first = start_job(shared(out), 2, "compare");
  ASSERT_FALSE(trained_by(out, "rank 1").empty())
      << read(folder().file("compare0.err")) + read(folder().file("compare1.err"));
  ::kill(first.children[0], SIGTERM);
  const Ran lead = first.finish(0);
  EXPECT_EQ(lead.status, 0) << lead.err;
  EXPECT_NE(lead.out.find(": stopped; the same command goes on ("), lead.out.npos) << lead.out;
  EXPECT_EQ(first.finish(1).status, 0);
  EXPECT_EQ(results_of(out).at("state"), "stopped");
  for (const json& run : of_results(out, "runs")) EXPECT_NE(run.at("state"), "failed") << run;
  ASSERT_EQ(call_ranks(shared(out), 2).status, 0);
  EXPECT_EQ(values_of(out), values_of(alone()));

  const std::string long_one = timed_folder("compared-long");
  const Job second = start_job(shared(long_one, "4000") + Words{"--patience", "4"}, 2, "compare");
  ASSERT_FALSE(trained_by(long_one, "rank 1").empty());
  for (const pid_t rank : second.children) ::kill(rank, SIGSTOP);  // as a scheduler suspends
  ::usleep(6000000);
  for (const pid_t rank : second.children) ::kill(rank, SIGCONT);
  ::usleep(1500000);
  ::kill(second.children[1], SIGUSR1);
  EXPECT_EQ(second.finish(1).status, 0);
  ::usleep(1500000);
  ::kill(second.children[0], SIGUSR1);
  const Ran said = second.finish(0);
  EXPECT_EQ(said.status, 0);
  // Whether it still had its run when it was heard of depends on who was quicker.
  EXPECT_NE(said.err.find("rank 1 on "), said.err.npos) << said.err;
  EXPECT_NE(said.err.find(" was told to stop; "), said.err.npos) << said.err;
}

/// A process with this rank, in this folder.
pid_t start_rank(const Words& words, int rank, int size, const std::string& name,
                 const std::string& place = ".") {
  const fs::path before = fs::current_path();
  fs::current_path(place);
  set_standing(rank, size, 29500);
  const pid_t child = start(words, name);
  for (const char* variable : {"RANK", "WORLD_SIZE"}) ::unsetenv(variable);
  fs::current_path(before);
  return child;
}

TEST(CompareRanks, WhoIsAloneSaysSo) {
  const std::string out = folder().file("compared-lonely"), lock = out + "/ranks/1.lock";
  // It waits until it is told: however slow the machine, its twin comes while it is there.
  const pid_t first = start_rank(shared(out) + Words{"--patience", "6000"}, 1, 2, "first");
  for (int wait = 0; wait < 6000 && !foci::cli::Hold::is_taken(lock); ++wait) ::usleep(10000);
  const Ran twin = finish(start_rank(shared(out), 1, 2, "twin"), "twin");
  ::kill(first, SIGTERM);
  EXPECT_EQ(finish(first, "first").status, 0);
  EXPECT_EQ(twin.status, 1);
  EXPECT_EQ(twin.err, "foci: " + out + ": another rank 1 is at work in it\n");
  const pid_t lonely = start_rank(shared(out) + Words{"--patience", "2"}, 1, 2, "lonely");
  const Ran ran = finish(lonely, "lonely");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.err.find("foci: rank 1 on "), 0u) << ran.err;
  EXPECT_NE(ran.err.find(" finds no rank 0 in " + out +
                         ": the folder must be one that all hosts share\n"),
            ran.err.npos)
      << ran.err;
  const std::string other = timed_folder("compared-by-one");
  const std::string said =
      "1 of 2 ranks are here; the others did not start, or their hosts do "
      "not share " +
      other + "\n";
  const Words until_told = shared(other, "40000") + Words{"--patience", "1"};
  const pid_t lead = start_rank(until_told, 0, 2, "lead");
  const auto heard = [&] { return read(folder().file("lead.err")); };
  for (int wait = 0; wait < 6000 && heard().find(said) == said.npos; ++wait) ::usleep(10000);
  ::kill(lead, SIGTERM);
  EXPECT_EQ(finish(lead, "lead").status, 0);
  EXPECT_NE(heard().find(said), said.npos) << heard();
}

TEST(CompareRanks, OtherDataAndOtherPlansAreRefused) {
  const std::string here = folder().file("host-a"), there = folder().file("host-b");
  for (const auto& [place, seed] : {std::pair(here, "1"), {there, "2"}})
    call({"data", "make", "images", "--out", place + "/set", "--count", "80", "--seed", seed});
  const Words words =
      shared(folder().file("compared-apart"), "400") + Words{"--data", "set", "--patience", "5"};
  const pid_t lead = start_rank(words, 0, 3, "apart0", here);
  const pid_t data = start_rank(words, 1, 3, "apart1", there);
  const pid_t plan = start_rank(words + Words{"--mechanisms", "random"}, 2, 3, "apart2", here);
  const Ran other_data = finish(data, "apart1"), other_plan = finish(plan, "apart2");
  EXPECT_EQ(other_data.status, 1);
  EXPECT_NE(other_data.err.find(" is not what rank 0 has there: its sum is "), std::string::npos)
      << other_data.err;
  EXPECT_EQ(other_plan.status, 1);
  EXPECT_EQ(other_plan.err.find("foci: rank 0 has another plan: runs/"), 0u) << other_plan.err;
  const Ran ran = finish(lead, "apart0");
  EXPECT_EQ(ran.status, 0) << ran.err;
}

}  // namespace
