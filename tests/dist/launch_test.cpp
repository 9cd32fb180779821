// SPDX-License-Identifier: Apache-2.0
// foci launch: mistakes, a whole run, a process that is killed, a signal, and network namespaces as
// hosts, one of which is cut off.
#include "dist/ranks.hpp"

#include "cli/launch.hpp"

#include <chrono>

namespace {

using namespace dist_test;
using Clock = std::chrono::steady_clock;

TEST(Launch, MistakesAreToldInOneLine) {
  const Words train = {"--", "train", "images", "--data", images(), "--run", "r"};
  const std::vector<std::pair<Words, std::string>> all = {
      {{"-n", "2"}, "launch needs a command after --"},
      {{"-n", "2", "--", "eval", "r"},
       "eval works in one process; launch is for train and compare"},
      {Words{"-n", "0"} + train, "--processes 0; it must be 1 to 4096"},
      {Words{"-n", "3", "--hosts", "a,b"} + train, "3 processes on 2 hosts; each host has as many"},
      {Words{"--port", "70000"} + train, "--port 70000 is more than 65535"},
      {{"-n", "2", "--", "train", "imags"}, "train cannot learn 'imags'; did you mean images?"},
      {{"--hots", "a"}, "launch has no flag --hots; did you mean --hosts?"},
      {{"train"}, "launch does not know what to do with 'train'"},
  };
  for (const auto& [words, says] : all) {
    const Ran ran = run_foci(Words{"launch"} + words);
    EXPECT_EQ(ran.status, 2) << says;
    EXPECT_EQ(ran.err.find("foci: " + says + "\n"), 0u) << ran.err;
  }
  EXPECT_NE(run_foci({"launch", "--help"}).out.find("--hosts"), std::string::npos);
}

TEST(Launch, AnotherMachineHearsOfThreadsAndNetwork) {
  for (const auto& [name, value] : {std::pair("OMP_NUM_THREADS", "3"),
                                    {"GLOO_SOCKET_IFNAME", "eth'1"},
                                    {"NCCL_DEBUG", "a b"},
                                    {"FOCI_OTHER", "x"}})
    ::setenv(name, value, 1);
  foci::cli::Launch launch;
  launch.command = {"train"};
  const std::string script = foci::cli::script_of(launch, {"RANK=0"});
  for (const char* name : {"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "FOCI_OTHER"})
    ::unsetenv(name);
  for (const char* line :
       {"\nexport OMP_NUM_THREADS='3'\n", "\nexport GLOO_SOCKET_IFNAME='eth'\\''1'\n",
        "\nexport NCCL_DEBUG='a b'\n", "\nexport RANK=0\n"})
    EXPECT_NE(script.find(line), script.npos) << script;
  EXPECT_EQ(script.find("FOCI_OTHER"), script.npos) << script;
}

TEST(Launch, TrainsWithRanksBeforeTheirLines) {
  const std::string run = folder().file("launched"), one = folder().file("launched-one");
  Words words = tiny(run) + Words{"--optimizer", "sgd"};
  std::erase(words, "--quiet");
  const Ran ran = run_foci(Words{"launch", "-n", "2", "--"} + words);
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.out.find(run + ": 3 steps, "), 0u) << ran.out;
  EXPECT_EQ(ran.err.find("[0] step 1 of 3  loss "), 0u) << ran.err;
  EXPECT_EQ(ran.err.find("[1]"), ran.err.npos) << ran.err;
  ASSERT_EQ(call(tiny(one) + Words{"--optimizer", "sgd"}).status, 0);
  EXPECT_LT(apart(checkpoint(one, 3), checkpoint(run, 3), "model.safetensors"), 1e-4);
}

TEST(Launch, EndsAllWhenOneIsKilledAndPassesSignalsOn) {
  const std::string run = folder().file("launch-killed");
  const Words words = Words{"-n", "3", "--"} + tiny(run) +
                      Words{"--steps", "4000", "--save-every", "4", "--resume"};
  const pid_t killed = start_launch(words, "launch");
  ASSERT_TRUE(waits_for_lines(run, 6));
  const auto children = children_of(killed);
  ASSERT_EQ(children.size(), 3u);
  ::kill(children[1], SIGKILL);
  const Ran ran = finish(killed, "launch");
  EXPECT_EQ(ran.status, 1);
  EXPECT_NE(ran.err.find("foci: rank 1 was ended by signal 9 (Killed: by hand, or for want of "
                         "memory); all others end\n"),
            ran.err.npos)
      << ran.err;
  EXPECT_NE(ran.err.find("foci: rank 1 of 3 on "), ran.err.npos) << ran.err;
  EXPECT_NE(ran.err.find("; the last saved step is "), ran.err.npos) << ran.err;
  for (const pid_t child : children) EXPECT_NE(::kill(child, 0), 0);

  const pid_t told = start_launch(words, "launch");
  ASSERT_TRUE(waits_for_lines(run, lines_of(run) + 12));
  ::kill(told, SIGTERM);
  EXPECT_EQ(finish(told, "launch").status, 0);
  EXPECT_TRUE(fs::exists(checkpoint(run, int(lines_of(run)))));
}

/// Two namespaces with a cable between them. Gloo calls at the lower of two addresses: these are
/// above 127.*, so that a loopback in their place is called at.
class Hosts {
 public:
  Hosts() {
    const std::string pid = std::to_string(::getpid());
    a_ = "foci-a" + pid;
    b_ = "foci-b" + pid;
    std::string all = "ip netns add " + a_ + " && ip netns add " + b_;
    all += " && ip -n " + a_ + " link add eth0 type veth peer name eth0 netns " + b_;
    for (const auto& [name, address] : {std::pair(a_, "192.168.77.1"), {b_, "192.168.77.2"}}) {
      all += " && ip -n " + name + " addr add " + address + "/24 dev eth0";
      all += " && ip -n " + name + " link set eth0 up && ip -n " + name + " link set lo up";
    }
    good_ = run_shell(all).status == 0;
  }
  ~Hosts() {
    run_shell("ip netns del " + a_ + "; ip netns del " + b_);
    std::error_code none;
    for (const std::string& host : {a_, b_}) fs::remove_all("/etc/netns/" + host, none);
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;
  bool good() const { return good_; }
  Words flags(const std::string& master = "192.168.77.1") const {
    return {"-n",       "2",    "--hosts", a_ + "," + b_, "--through", "ip netns exec",
            "--master", master, "--"};
  }
  /// A name of the first that it believes to be its loopback, as Debian has it.
  void name_first(const std::string& name) const {
    for (const auto& [host, address] : {std::pair(a_, "127.0.1.1"), {b_, "192.168.77.1"}}) {
      fs::create_directories("/etc/netns/" + host);
      write("/etc/netns/" + host + "/hosts", std::string(address) + " " + name + "\n");
    }
  }
  void cut() const { run_shell("ip -n " + b_ + " link set eth0 down"); }
  void join() const { run_shell("ip -n " + b_ + " link set eth0 up"); }

 private:
  std::string a_, b_;
  bool good_ = false;
};

TEST(Launch, AFirstHostWhoseNameIsItsLoopback) {
  const Hosts hosts;
  if (!hosts.good()) GTEST_SKIP() << "no network namespaces here";
  hosts.name_first("foci-first");
  const std::string run = folder().file("named");
  const Ran ran = run_foci(Words{"launch"} + hosts.flags("foci-first") + tiny(run));
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(lines_of(run), 3u);
}

TEST(Launch, AHostThatIsCutOffIsNamedAndTheRunGoesOn) {
  const Hosts hosts;
  if (!hosts.good()) GTEST_SKIP() << "no network namespaces here";
  const std::string run = folder().file("hosts"), whole = folder().file("hosts-whole");
  const Words words = hosts.flags() + tiny(run) + Words{"--steps",     "400",        "--save-every",
                                                        "4",           "--patience", "10",
                                                        "--optimizer", "sgd",        "--resume"};
  const pid_t launcher = start_launch(words, "hosts");
  ASSERT_TRUE(waits_for_lines(run, 6)) << read(folder().file("hosts.err"));
  hosts.cut();
  const auto begin = Clock::now();
  const Ran ran = finish(launcher, "hosts");
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 60);
  EXPECT_EQ(ran.status, 1);
  EXPECT_NE(ran.err.find("[0] foci: rank 1 of 2 on "), ran.err.npos) << ran.err;
  EXPECT_NE(ran.err.find("is lost: no sign of life for "), ran.err.npos) << ran.err;
  EXPECT_NE(ran.err.find("; the last saved step is "), ran.err.npos) << ran.err;
  hosts.join();
  const pid_t again = start_launch(words, "hosts");
  ASSERT_TRUE(waits_for_lines(run, lines_of(run) + 12)) << read(folder().file("hosts.err"));
  ::kill(again, SIGTERM);  // by way of `ip netns exec`, as by ssh
  const Ran ended = finish(again, "hosts");
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(fs::exists(checkpoint(run, int(lines_of(run)))));
}

}  // namespace
