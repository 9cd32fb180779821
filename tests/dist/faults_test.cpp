// SPDX-License-Identifier: Apache-2.0
// A rank that is killed, hangs, runs out of room or is told to stop: the job ends, says who and
// what is saved, and goes on from there with any number of processes.
#include "dist/ranks.hpp"

#include <chrono>
#include <random>
#include <thread>

namespace {

using namespace dist_test;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Words long_run(const std::string& run, const std::string& steps) {
  return tiny(run) + Words{"--steps", steps, "--save-every", "4", "--optimizer", "sgd", "--resume"};
}

/// The step of the last whole checkpoint.
int last_saved(const std::string& run) {
  int last = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run + "/checkpoints", none)) {
    const std::string name = entry.path().filename().string();
    if (fs::exists(entry.path() / "training.safetensors"))
      last = std::max(last, std::stoi(name.substr(5)));
  }
  return last;
}

/// What a line says is saved, -1 where it says nothing of it.
int saved_in(const std::string& line) {
  const std::string words = "; the last saved step is ";
  const auto at = line.find(words);
  return at == line.npos ? -1 : std::stoi(line.substr(at + words.size()));
}

std::string told_by(const Job& job, int rank) {
  const Ran ran = job.finish(rank);
  EXPECT_EQ(ran.status, 1) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  return ran.err;
}

/// What the ranks say of the one that was killed, and of what is saved.
void expect_named(const std::vector<Ran>& all, int victim, const std::string& run) {
  const std::string rank = std::to_string(victim), size = std::to_string(all.size());
  for (int other = 0; other < int(all.size()); ++other) {
    const Ran& ran = all[std::size_t(other)];
    if (other == victim) {
      EXPECT_EQ(ran.status, -SIGKILL) << ran.err;
      continue;
    }
    EXPECT_EQ(ran.status, 1) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_EQ(ran.err.find("foci: rank " + rank + " of " + size), 0u) << ran.err;
    EXPECT_GT(saved_in(ran.err), 0) << ran.err;
    EXPECT_LE(saved_in(ran.err), last_saved(run)) << ran.err;
  }
}

/// Random ranks of two to four, several rounds; the curve of a run that nobody killed. A run that
/// is done before its rank is killed is held against that curve, and the next one begins anew.
TEST(Faults, KilledRanksAreNamedAndNothingSavedIsLost) {
  const std::string run = folder().file("killed"), whole = folder().file("whole");
  const char* more = std::getenv("FOCI_ROUNDS");
  const int rounds = more != nullptr ? std::atoi(more) : 4, last = 160;
  const Words words = long_run(run, std::to_string(last)) + Words{"--patience", "120"};
  ASSERT_EQ(call_ranks(long_run(whole, std::to_string(last)), 2).status, 0);
  const auto expect_whole = [&] {
    EXPECT_EQ(lines_of(run), std::size_t(last));
    EXPECT_LT(apart(checkpoint(whole, last), checkpoint(run, last), "model.safetensors"), 1e-4);
    fs::remove_all(run);
  };
  std::mt19937 random(3);
  for (int round = 0; round < rounds;) {
    const int size = 2 + round % 3, victim = int(random() % unsigned(size));
    const Job job = start_job(words, size, "killed");
    const std::size_t wanted = std::size_t(last_saved(run)) + 5 + random() % 8;
    ASSERT_TRUE(waits_for_lines(run, std::min(wanted, std::size_t(last))));
    ::kill(job.children[std::size_t(victim)], SIGKILL);
    const auto begin = Clock::now();
    std::vector<Ran> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(job.finish(rank));
    EXPECT_LT(since(begin), 60);
    if (last_saved(run) == last) {
      expect_whole();
      continue;
    }
    expect_named(all, victim, run);
    ++round;
  }
  ASSERT_EQ(call_ranks(words, 2).status, 0);
  expect_whole();
}

TEST(Faults, AHangingRankIsNamed) {
  for (const int victim : {1, 0}) {
    const std::string run = folder().file("hanging" + std::to_string(victim));
    const Job job = start_job(long_run(run, "4000") + Words{"--patience", "10"}, 3, "hanging");
    ASSERT_TRUE(waits_for_lines(run, 6));
    ::kill(job.children[std::size_t(victim)], SIGSTOP);
    const auto begin = Clock::now();
    const std::string text = told_by(job, 2), other = told_by(job, 1 - victim);
    EXPECT_LT(since(begin), 60);
    for (const std::string& line : {text, other}) {
      EXPECT_EQ(line.find("foci: rank " + std::to_string(victim) + " of 3"), 0u) << line;
      const int saved = saved_in(line);
      EXPECT_GE(saved, last_saved(run) - 4) << line;  // what is being written is not yet safe
      EXPECT_LE(saved, last_saved(run)) << line;
    }
    ::kill(job.children[std::size_t(victim)], SIGKILL);
    job.finish(victim);
  }
}

/// The command as it stands, with something of the system replaced.
Ran run_with(const char* preloaded, const Words& words) {
  ::setenv("LD_PRELOAD", preloaded, 1);
  const Ran ran = run_foci(words);
  ::unsetenv("LD_PRELOAD");
  return ran;
}

/// Before the first sum nothing but time tells that a rank will never come.
TEST(Faults, ARankThatNeverGetsItsImagesIsNamed) {
  const auto begin = Clock::now();
  const Ran ran =
      run_with(FOCI_STUCK_OPEN, Words{"launch", "-n", "2", "--"} + tiny(folder().file("stuck")) +
                                    Words{"--patience", "6"});
  EXPECT_GT(since(begin), 55);  // images of some size take their time
  EXPECT_EQ(ran.status, 1);
  EXPECT_NE(ran.err.find("foci: rank 1 of 2 on "), ran.err.npos) << ran.err;
  EXPECT_NE(ran.err.find(" hangs: no progress for "), ran.err.npos) << ran.err;
}

TEST(Faults, ATermToAnyRankSavesOnceAndEndsWithZero) {
  for (const auto& [number, victim] : {std::pair(SIGTERM, 1), {SIGUSR1, 0}}) {
    const std::string run = folder().file("told" + std::to_string(number));
    const Job job = start_job(long_run(run, "4000"), 2, "told");
    ASSERT_TRUE(waits_for_lines(run, 6));
    ::kill(job.children[std::size_t(victim)], number);
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(job.finish(rank).status, 0);
    EXPECT_EQ(std::size_t(last_saved(run)), lines_of(run));
  }
}

TEST(Faults, AFullDiskEndsAllWithItsReason) {
  const std::string run = folder().file("full");
  const Job job = start_job(long_run(run, "8"), 2, "full", 20000);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string text = told_by(job, rank);
    EXPECT_NE(text.find("model.safetensors: cannot be written: File too large"), text.npos) << text;
  }
  ASSERT_EQ(call_ranks(long_run(run, "8"), 2).status, 0);
  EXPECT_EQ(last_saved(run), 8);
}

TEST(Faults, TwoJobsInOneFolder) {
  const std::string run = folder().file("locked");
  const Job job = start_job(long_run(run, "4000"), 2, "locked");
  ASSERT_TRUE(waits_for_lines(run, 2));
  const Ran other = call(long_run(run, "4000"));
  EXPECT_EQ(other.status, 1);
  EXPECT_EQ(other.err.find("foci: " + run + "/lock: process " + std::to_string(job.children[0])),
            0u)
      << other.err;
  EXPECT_NE(other.err.find(" trains into this folder\n"), other.err.npos) << other.err;
  ::kill(job.children[0], SIGTERM);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(job.finish(rank).status, 0);
}

TEST(Faults, AMistakeIsToldByAll) {
  const std::string run = folder().file("mistake");
  const Job job = start_job(tiny(run) + Words{"--batch", "1"}, 2, "mistake");
  for (int rank = 0; rank < 2; ++rank) {
    const Ran ran = job.finish(rank);
    EXPECT_EQ(ran.status, 2);
    EXPECT_EQ(ran.err.find("foci: a batch of 1 for 2 processes; each needs one at least\n"), 0u)
        << ran.err;
  }
}

/// The largest step back or forth of the times in a run's metrics.jsonl.
double largest_jump(const std::string& run) {
  std::ifstream file(run + "/metrics.jsonl");
  double before = 0, most = 0;
  for (std::string line; std::getline(file, line);) {
    const double time = nlohmann::json::parse(line).at("time");
    if (before > 0) most = std::max(most, std::abs(time - before));
    before = time;
  }
  return most;
}

TEST(Faults, AClockThatJumpsMeansNothing) {
  const std::string run = folder().file("jumps"), whole = folder().file("jumps-whole");
  const Words words = {"--steps", "300", "--patience", "10", "--optimizer", "sgd"};
  const Ran ran =
      run_with(FOCI_JUMPING_CLOCK, Words{"launch", "-n", "2", "--"} + tiny(run) + words);
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  EXPECT_GT(largest_jump(run), 3600);
  ASSERT_EQ(call(tiny(whole) + words).status, 0);
  EXPECT_LT(apart(checkpoint(whole, 300), checkpoint(run, 300), "model.safetensors"), 1e-4);

  // A comparison times its mechanisms; with a clock that it believed it would find nonsense.
  const std::string out = folder().file("jumps-compared");
  const Ran compared =
      run_with(FOCI_JUMPING_CLOCK, {"launch",   "-n",
                                    "2",        "--",
                                    "compare",  "--data",
                                    images(),   "--out",
                                    out,        "--mechanisms",
                                    "dot,flat", "--seeds",
                                    "1",        "--steps",
                                    "60",       "--attack",
                                    "none",     "--corruptions",
                                    "none",     "--measure-samples",
                                    "0",        "--maps",
                                    "0",        "--patience",
                                    "10",       "--jobs",
                                    "1",        "--threads",
                                    "1",        "--quiet",
                                    "--model",  "dim=16 depth=2 heads=2 patch=14 batch=20"});
  EXPECT_EQ(compared.status, 0) << compared.err;
  const auto speeds = nlohmann::json::parse(read(out + "/timing.json")).at("speeds");
  for (const char* name : {"dot", "flat"}) {
    const double speed = speeds.at(name).at("per_second")[0];
    EXPECT_GT(speed, 1) << name;
    EXPECT_LT(speed, 1e6) << name;
  }
}

/// Tensors of 145 MB in a process that may have 700.
TEST(Faults, ARankWithoutMemoryIsNamed) {
  const std::string run = folder().file("hungry"), port = std::to_string(free_port());
  std::string command = cli_test::quoted(program);
  for (const std::string& word :
       tiny(run) + Words{"--dim", "768", "--patch", "1", "--batch", "120"})
    (command += ' ') += cli_test::quoted(word);
  const std::string world = "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port;
  const Ran ran = run_shell(world + "; RANK=0 " + command + " & (ulimit -d 700000; RANK=1 " +
                            command + "); echo $?; wait $!; echo $?");
  EXPECT_EQ(ran.out, "1\n1\n") << ran.err;
  EXPECT_NE(ran.err.find("foci: there is not enough memory\n"), ran.err.npos) << ran.err;
  EXPECT_NE(ran.err.find("foci: rank 1 of 2 on "), ran.err.npos) << ran.err;
  EXPECT_NE(ran.err.find("): there is not enough memory\n"), ran.err.npos) << ran.err;
}

/// A scheduler suspends a job by stopping its processes, and lets it go on much later.
TEST(Faults, AJobThatIsSuspendedGoesOn) {
  const std::string run = folder().file("suspended");
  const Job job = start_job(long_run(run, "4000") + Words{"--patience", "10"}, 2, "suspended");
  ASSERT_TRUE(waits_for_lines(run, 6));
  for (const pid_t rank : job.children) ::kill(rank, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(15));
  const std::size_t before = lines_of(run);
  for (const pid_t rank : job.children) ::kill(rank, SIGCONT);
  EXPECT_TRUE(waits_for_lines(run, before + 8));
  for (const pid_t rank : job.children) ::kill(rank, SIGTERM);
  for (int rank = 0; rank < 2; ++rank) {
    const Ran ran = job.finish(rank);
    EXPECT_EQ(ran.status, 0) << ran.err;
  }
  EXPECT_EQ(std::size_t(last_saved(run)), lines_of(run));
}

/// A command where a file system of our own is mounted at `place`.
Ran run_in_mount(const std::string& place, const std::string& options, const Words& words) {
  fs::create_directories(place);
  std::string command =
      "mount -t tmpfs -o " + options + " none " + place + " && " + cli_test::quoted(program);
  for (const std::string& word : words) (command += ' ') += cli_test::quoted(word);
  command += "; status=$?; ls " + place + "/*/checkpoints; exit $status";
  return run_shell("unshare -m sh -c " + cli_test::quoted(command));
}

TEST(Faults, AFolderThatCannotBeWritten) {
  if (run_shell("unshare -m true").status != 0) GTEST_SKIP() << "no namespaces here";
  const std::string place = folder().file("read-only"), all = place + "/*/checkpoints";
  const std::string none = "ls: cannot access '" + all + "': No such file or directory\n";
  const Ran ran = run_in_mount(place, "ro", tiny(place + "/run"));
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.err, "foci: " + place + "/run: Read-only file system\n" + none);
  const Ran compared = run_in_mount(
      place, "ro", {"compare", "--data", images(), "--out", place + "/out", "--steps", "2"});
  EXPECT_EQ(compared.status, 1);
  EXPECT_EQ(compared.err, "foci: " + place + "/out: Read-only file system\n" + none);
}

/// Room for the first checkpoint and not for the second: all end, and the first stays.
TEST(Faults, ADiskThatIsFullEndsAllAndKeepsWhatIsSaved) {
  if (run_shell("unshare -m true").status != 0) GTEST_SKIP() << "no namespaces here";
  const std::string place = folder().file("full-disk");
  const Ran ran = run_in_mount(place, "size=300k",
                               Words{"launch", "-n", "2", "--"} + tiny(place + "/run") +
                                   Words{"--steps", "400", "--save-every", "4", "--keep", "9"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_NE(ran.err.find("cannot be written: No space left on device"), ran.err.npos) << ran.err;
  EXPECT_NE(ran.err.find("; the last saved step is "), ran.err.npos) << ran.err;
  EXPECT_EQ(ran.out.find("step-4"), 0u) << ran.out;
}

/// What torchrun does when others join: it ends all and starts them again, and counts no restart.
TEST(Faults, AJobOfTheSameNameGoesOnByItself) {
  const std::string run = folder().file("joined");
  Words words = long_run(run, "400");
  words.pop_back();  // without --resume
  ::setenv("TORCHELASTIC_RUN_ID", "job-7", 1);
  const Job first = start_job(words, 2, "joined");
  ASSERT_TRUE(waits_for_lines(run, 6));
  for (const pid_t rank : first.children) ::kill(rank, SIGKILL);
  for (int rank = 0; rank < 2; ++rank) first.finish(rank);
  ::setenv("TORCHELASTIC_RUN_ID", "job-8", 1);
  const Ran other = start_job(words, 1, "joined").finish(0);
  EXPECT_EQ(other.status, 2);
  EXPECT_EQ(other.err.find("foci: " + run + " holds a run already\n"), 0u) << other.err;
  ::setenv("TORCHELASTIC_RUN_ID", "job-7", 1);
  call_ranks(words, 3);
  ::unsetenv("TORCHELASTIC_RUN_ID");
  EXPECT_EQ(last_saved(run), 400);
  EXPECT_EQ(lines_of(run), 400u);
}

const std::string python = "/usr/bin/python3";

/// A run by torchrun, one of whose ranks kills itself at the ninth step of the first attempt; what
/// each attempt's rank 1 knows of the attempt and of the store goes into a file. torchrun reads the
/// words as templates: $$ is written twice.
Ran killed_once(const std::string& rendezvous, const std::string& run, const std::string& steps) {
  const std::string attempt =
      "[ $RANK = 1 ] && echo attempt $TORCHELASTIC_RESTART_COUNT, agent "
      "$TORCHELASTIC_USE_AGENT_STORE >> " +
      run + ".attempts; ";
  const std::string end =
      "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then (while ! grep -q "
      "'\"step\":9,' " +
      run +
      "/metrics.jsonl 2>/dev/null; do sleep 0.02; done; [ $RANK = 1 ] && "
      "kill -9 $$$$) & fi; ";
  // -r and -t: without them torch 1.13 fails under Python 3.11.
  std::string command = python + " -m torch.distributed.run " + rendezvous +
                        " --nproc_per_node=2 --max_restarts=3 --monitor_interval=0.2 -r 1 -t 1 "
                        "--no_python sh -c " +
                        cli_test::quoted(attempt + end + "exec \"$0\" \"$@\"") + " " +
                        cli_test::quoted(program);
  Words words = long_run(run, steps);
  words.pop_back();  // without --resume
  for (const std::string& word : words) (command += ' ') += cli_test::quoted(word);
  return run_shell(command);
}

/// torchrun kills what is left of a round and begins anew by itself: with a store of rank 0's own,
/// and with the one that torchrun's agent holds, in which the first attempt's keys remain.
TEST(Faults, TorchrunGoesOnByItself) {
  if (run_shell(python + " -c 'import torch.distributed.run'").status != 0)
    GTEST_SKIP() << "no torchrun here";
  const std::string run = folder().file("torchrun"), whole = folder().file("torchrun-whole");
  ASSERT_EQ(call_ranks(long_run(whole, "120"), 2).status, 0);
  for (const char* agent : {"False", "True"}) {
    std::string attempts;
    do {  // until the rank is killed before the run is done
      fs::remove_all(run);
      fs::remove(run + ".attempts");
      const std::string port = std::to_string(free_port());
      const std::string at = *agent == 'F'
                                 ? "--rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:" + port
                                 : "--node_rank=0 --master_addr=127.0.0.1 --master_port=" + port;
      const Ran ran = killed_once("--nnodes=1 " + at, run, "120");
      ASSERT_EQ(ran.status, 0) << ran.err;
      attempts = read(run + ".attempts");
    } while (attempts == std::string("attempt 0, agent ") + agent + "\n");
    EXPECT_EQ(attempts,
              std::string("attempt 0, agent ") + agent + "\nattempt 1, agent " + agent + "\n");
    EXPECT_EQ(lines_of(run), 120u);
    EXPECT_LT(apart(checkpoint(whole, 120), checkpoint(run, 120), "model.safetensors"), 1e-4);
  }
}

}  // namespace
