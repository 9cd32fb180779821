// SPDX-License-Identifier: Apache-2.0
// Forks, and what they say of themselves by way of files.
#include "cli/torch/compare_queue.hpp"

#include "cli/misuse.hpp"
#include "cli/run_facts.hpp"
#include "cli/suggest.hpp"

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
#include <memory>
#include <thread>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int stopped_status = 75;
constexpr auto moment = std::chrono::milliseconds(50);
constexpr int look_every = 8;  // moments
constexpr int stop_signals[] = {SIGTERM, SIGINT};

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
    return work_on(run) ? 0 : stopped_status;
  } catch (const std::bad_alloc&) {
    return fail("there is not enough memory");
  } catch (const std::exception& fault) {
    return fail(fault.what());
  }
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct Worker {
  CompareRun* run;
  Clock::time_point begin;
  std::unique_ptr<Fork> fork;
};

Worker begun(CompareRun& run) {
  fs::create_directories(run.folder);
  fs::remove(run.folder + "/error.txt");
  run.state.state = "running";
  run.state.stage = run.state.error = "";
  return {&run, Clock::now(),
          std::make_unique<Fork>([&run] { return work(run); }, run.folder + "/log.txt")};
}

/// Looks at the files of a run; true when it began another step.
bool look(Worker& worker) {
  RunState& state = worker.run->state;
  state.seconds = std::chrono::duration<double>(Clock::now() - worker.begin).count();
  const Json status = read_json(worker.run->folder + "/status.json");
  const std::string stage = status.is_object() ? status.value("stage", "") : "";
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

void end(Worker& worker, int status) {
  RunState& state = worker.run->state;
  look(worker);
  if (status == 0) {
    tell_done(*worker.run);
    return;
  }
  if (status == stopped_status) {
    state.state = "waiting";
    return;
  }
  state.state = "failed";
  const std::string line = first_line(worker.run->folder + "/error.txt");
  state.error = status >= 128 ? fmt::format("ended by signal {} ({})", status - 128,
                                            ::strsignal(status - 128))
                              : shown(line.empty() ? "ended without a word" : line);
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
  for (int i = 0; i < 2; ++i)
    before_[i] = std::signal(stop_signals[i], [](int) { stop_wished = 1; });
}

StopWish::~StopWish() {
  for (int i = 0; i < 2; ++i) std::signal(stop_signals[i], before_[i]);
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

bool work_off(std::vector<CompareRun>& runs, int jobs, const QueueHears& hears,
              std::int64_t& peak_bytes) {
  std::vector<Worker> workers;
  std::size_t next = 0;
  for (int moments = 1;; ++moments) {
    while (int(workers.size()) < jobs && next < runs.size() && !StopWish::wished()) {
      CompareRun& run = runs[next++];
      if (run.state.state == "done") continue;
      workers.push_back(begun(run));
      hears.changed();
    }
    if (workers.empty()) break;
    std::this_thread::sleep_for(moment);
    std::int64_t bytes = resident_of("self");
    for (auto worker = workers.begin(); worker != workers.end();) {
      bytes += worker->fork->resident_bytes();
      if (StopWish::wished()) worker->fork->tell(SIGTERM);
      const int status = worker->fork->status();
      if (status >= 0) {
        end(*worker, status);
        worker = workers.erase(worker);
        hears.changed();
        continue;
      }
      if (moments % look_every == 0 && look(*worker)) hears.changed();
      ++worker;
    }
    peak_bytes = std::max(peak_bytes, bytes);
    hears.passed();
  }
  return !StopWish::wished();
}

std::vector<MetricsLine> metrics_of(const std::string& run) {
  constexpr std::streamoff most = 16384;
  std::ifstream file(run + "/metrics.jsonl", std::ios::ate);
  const std::streamoff size = file ? std::streamoff(file.tellg()) : 0;
  file.seekg(std::max<std::streamoff>(0, size - most));
  std::vector<MetricsLine> lines;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;  // cut at either end
    lines.push_back({json.value("step", std::int64_t(0)), json.value("memory", std::int64_t(0)),
                     json.value("per_second", 0.0), json.value("time", 0.0)});
  }
  return lines;
}

}  // namespace foci::cli
