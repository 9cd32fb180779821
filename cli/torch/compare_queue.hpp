// SPDX-License-Identifier: Apache-2.0
// Runs of a comparison in processes of their own, a few at once. One that fails or is killed leaves
// the others alone; when this process ends they end.
#pragma once

#include "cli/torch/compare_stages.hpp"

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace foci::cli {

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

/// SIGINT and SIGTERM are remembered while one of these lives.
class StopWish {
 public:
  StopWish();
  ~StopWish();
  StopWish(const StopWish&) = delete;
  StopWish& operator=(const StopWish&) = delete;
  static bool wished();

 private:
  void (*before_[2])(int) = {};
};

/// Thrown where a wish to stop is met before any run goes on.
struct Stopped {};

/// The state of a run whose steps are all there.
void tell_done(CompareRun& run);

struct QueueHears {
  std::function<void()> changed;  ///< a run began another step, or ended
  std::function<void()> passed;   ///< a moment passed
};
/// Does what is missing of every run; states say how far each is. False: told to stop. The most
/// memory that all had together is put into `peak_bytes`.
bool work_off(std::vector<CompareRun>& runs, int jobs, const QueueHears& hears,
              std::int64_t& peak_bytes);

/// Step, samples a second, time and resident bytes of the last lines of a run's metrics.jsonl.
struct MetricsLine {
  std::int64_t step = 0, memory = 0;
  double per_second = 0, time = 0;
};
std::vector<MetricsLine> metrics_of(const std::string& run);

}  // namespace foci::cli
