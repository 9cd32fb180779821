// SPDX-License-Identifier: Apache-2.0
// Forks, and what they say of themselves by way of files.
#include "cli/torch/compare_queue.hpp"

#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/run_facts.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/compare_ranks.hpp"
#include "cli/torch/run.hpp"
#include "cli/write.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int stopped_status = 75;
constexpr int look_every = 8;  // moments
constexpr double claim_seconds = 60;
constexpr int stop_signals[] = {SIGTERM, SIGINT, SIGUSR1};

volatile std::sig_atomic_t stop_wished = 0;

[[noreturn]] void go_on_alone(const std::function<int()>& task, const std::string& log,
                              pid_t parent) {
  ::setpgid(0, 0);  // Ctrl-C is for the parent, which tells
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  for (const int signal : stop_signals) std::signal(signal, SIG_DFL);
  for (std::FILE* file : {stdout, stderr}) {
    if (std::freopen(log.c_str(), "a", file) == nullptr) ::_exit(1);
  }
  const int status = task();
  std::fflush(nullptr);
  ::_exit(status);
}

/// What a run does in its process; a fault becomes a line in a file.
int work(const CompareRun& run) {
  const auto fail = [&](const std::string& what) {
    write_whole(run.folder + "/error.txt", what + "\n");
    return 1;
  };
  try {
    // Whoever was at work on it before may take a moment to end.
    const Hold own(run.folder + "/claim", "another process is at work on this run", claim_seconds);
    const std::string where = run.state.place.empty() ? this_host() : run.state.place;
    own.tell(fmt::format("{}, process {}\n", where, ::getpid()));
    return work_on(run) ? 0 : stopped_status;
  } catch (const std::exception& fault) {
    return fail(is_want_of_memory(fault) ? "there is not enough memory" : fault.what());
  }
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Every run that waits goes to where there is most room; true when one did.
bool hand_out(std::vector<CompareRun>& runs, Crew& crew, CompareLead* lead) {
  bool any = false;
  for (CompareRun& run : runs) {
    if (run.state.state != "waiting") continue;
    const int here = crew.room(), there = lead == nullptr ? 0 : lead->room();
    if (std::max(here, there) <= 0) break;
    there > here ? lead->give(run) : crew.begin(run);
    any = true;
  }
  return any;
}

std::int64_t resident_of(const std::string& process) {
  std::int64_t size = 0, resident = 0;
  std::ifstream("/proc/" + process + "/statm") >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

Fork::Fork(const std::function<int()>& task, const std::string& log) {
  std::fflush(nullptr);  // or the child would say it again
  const pid_t parent = ::getpid();
  child_ = ::fork();
  if (child_ == 0) go_on_alone(task, log, parent);
  if (child_ < 0) throw Error(fmt::format("no process can be started: {}", std::strerror(errno)));
}

Fork::Fork(Fork&& other) noexcept
    : child_(std::exchange(other.child_, -1)), status_(other.status_) {}

Fork::~Fork() {
  if (child_ < 0 || status_ >= 0) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

int Fork::status() {
  if (status_ >= 0) return status_;
  int status = 0;
  if (::waitpid(child_, &status, WNOHANG) != child_) return -1;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return status_;
}

void Fork::tell(int signal) const {
  if (child_ > 0 && status_ < 0) ::kill(child_, signal);
}

std::int64_t Fork::resident_bytes() const { return resident_of(std::to_string(child_)); }

StopWish::StopWish() {
  stop_wished = 0;
  for (int i = 0; i < 3; ++i)
    before_[i] = std::signal(stop_signals[i], [](int) { stop_wished = 1; });
}

StopWish::~StopWish() {
  for (int i = 0; i < 3; ++i) std::signal(stop_signals[i], before_[i]);
}

bool StopWish::wished() { return stop_wished != 0; }

void tell_done(CompareRun& run) {
  RunState& state = run.state;
  state.state = "done";
  state.stage = "";
  state.step = state.steps;
  state.seconds = 0;
  for (const CompareStage& stage : run.stages)
    state.seconds += read_json(stage.file).at("seconds").get<double>();
  const auto lines = metrics_of(run.folder);
  state.per_second = lines.empty() ? 0 : lines.back().per_second;
}

void Crew::begin(CompareRun& run) {
  fs::create_directories(run.folder);
  fs::remove(run.folder + "/error.txt");
  run.state.state = "running";
  run.state.stage = run.state.error = "";
  run.state.place = place_;
  workers_.push_back(
      {&run, Clock::now(),
       std::make_unique<Fork>([&run] { return work(run); }, run.folder + "/log.txt")});
}

bool Crew::look_at(Worker& worker) const {
  RunState& state = worker.run->state;
  state.seconds = std::chrono::duration<double>(Clock::now() - worker.begin).count();
  const Json status = read_json(worker.run->folder + "/status.json");
  const Json said = status.is_object() ? status.value("stage", Json()) : Json();
  const std::string stage = said.is_string() ? said.get<std::string>() : "";
  if (stage == "training") {
    const auto lines = metrics_of(worker.run->folder);
    if (!lines.empty()) {
      state.step = lines.back().step;
      state.per_second = lines.back().per_second;
    }
  }
  const bool another = stage != state.stage;
  state.stage = stage;
  return another;
}

void Crew::end(Worker& worker, int status) const {
  RunState& state = worker.run->state;
  look_at(worker);
  state.place = "";
  if (status == 0) {
    tell_done(*worker.run);
    return;
  }
  if (status == stopped_status || stopped_) {  // what fails because of that will be tried again
    state.state = "waiting";
    return;
  }
  state.state = "failed";
  const std::string line = first_line(worker.run->folder + "/error.txt");
  state.error = status >= 128 ? fmt::format("ended by signal {} ({})", status - 128,
                                            ::strsignal(status - 128))
                              : shown(line.empty() ? "ended without a word" : line);
}

bool Crew::look() {
  const bool closely = ++looks_ % look_every == 0;
  bool changed = false;
  for (auto worker = workers_.begin(); worker != workers_.end();) {
    const int status = worker->fork->status();
    if (status >= 0) {
      end(*worker, status);
      worker = workers_.erase(worker);
      changed = true;
      continue;
    }
    if (closely && look_at(*worker)) changed = true;
    ++worker;
  }
  return changed;
}

void Crew::stop() {
  stopped_ = true;
  for (const Worker& worker : workers_) worker.fork->tell(SIGTERM);
}

std::int64_t Crew::bytes() const {
  std::int64_t all = resident_of("self");
  for (const Worker& worker : workers_) all += worker.fork->resident_bytes();
  return all;
}

bool work_off(std::vector<CompareRun>& runs, Crew& crew, CompareLead* lead, const QueueHears& hears,
              std::int64_t& peak_bytes) {
  for (int moments = 0;; ++moments) {
    bool changed = lead != nullptr && moments % look_every == 0 && lead->hear(runs);
    if (StopWish::wished()) {
      crew.stop();
      if (lead != nullptr) lead->stop();
    } else {
      changed = hand_out(runs, crew, lead) || changed;
    }
    if (changed) hears.changed();
    if (crew.is_idle() && (lead == nullptr || lead->is_idle())) break;
    std::this_thread::sleep_for(crew_moment);
    if (crew.look()) hears.changed();
    const std::int64_t others = lead == nullptr ? 0 : lead->bytes();
    peak_bytes = std::max(peak_bytes, crew.bytes() + others);
    hears.passed();
  }
  return !StopWish::wished();
}

}  // namespace foci::cli
