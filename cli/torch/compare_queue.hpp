// SPDX-License-Identifier: Apache-2.0
// Runs of a comparison in processes of their own, a few at once. One that fails or is killed leaves
// the others alone; when this process ends they end.
#pragma once

#include "cli/torch/compare_stages.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

namespace foci::cli {

class CompareLead;

/// A part of this process that goes on by itself, its outputs in a file. Torch must be idle here.
class Fork {
 public:
  /// The status that `task` gives is that of the process.
  Fork(const std::function<int()>& task, const std::string& log);
  ~Fork();  ///< kills it where it still runs
  Fork(Fork&& other) noexcept;
  Fork& operator=(Fork&&) = delete;
  Fork(const Fork&) = delete;

  /// -1: it still runs; 128 and more: ended by that signal.
  int status();
  void tell(int signal) const;
  std::int64_t resident_bytes() const;

 private:
  pid_t child_ = -1;
  int status_ = -1;
};

/// SIGINT, SIGTERM and SIGUSR1 are remembered while one of these lives.
class StopWish {
 public:
  StopWish();
  ~StopWish();
  StopWish(const StopWish&) = delete;
  StopWish& operator=(const StopWish&) = delete;
  static bool wished();

 private:
  void (*before_[3])(int) = {};
};

/// Thrown where a wish to stop is met before any run goes on.
struct Stopped {};

/// The state of a run whose steps are all there.
void tell_done(CompareRun& run);

/// Runs at work in forks of this process; states say how far each is.
class Crew {
 public:
  /// `place`: said of the runs that are at work here.
  explicit Crew(int jobs, std::string place = {}) : jobs_(jobs), place_(std::move(place)) {}
  int jobs() const { return jobs_; }
  int room() const { return jobs_ - int(workers_.size()); }
  bool is_idle() const { return workers_.empty(); }
  void begin(CompareRun& run);
  /// After a moment. True: a run began another step, or ended.
  bool look();
  /// All save and end.
  void stop();
  std::int64_t bytes() const;  ///< resident, this process with them

 private:
  struct Worker {
    CompareRun* run;
    std::chrono::steady_clock::time_point begin;
    std::unique_ptr<Fork> fork;
  };
  bool look_at(Worker& worker) const;
  void end(Worker& worker, int status) const;

  int jobs_;
  std::string place_;
  std::vector<Worker> workers_;
  int looks_ = 0;
  bool stopped_ = false;
};
/// How long to sleep between two looks.
inline constexpr auto crew_moment = std::chrono::milliseconds(50);

struct QueueHears {
  std::function<void()> changed;  ///< a run began another step, or ended
  std::function<void()> passed;   ///< a moment passed
};
/// Does what is missing of every run, here and by the other ranks of `lead`, if any. False: told to
/// stop. The most memory that all had together is put into `peak_bytes`.
bool work_off(std::vector<CompareRun>& runs, Crew& crew, CompareLead* lead, const QueueHears& hears,
              std::int64_t& peak_bytes);

}  // namespace foci::cli
