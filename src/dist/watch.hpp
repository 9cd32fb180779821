// SPDX-License-Identifier: Apache-2.0
// Signs of life through the store. Every rank beats once a second; rank 0 looks at all of them, the
// others at rank 0. Who is silent, or gets nowhere while others wait, is named in a verdict that
// ends the job. A clock that is set does not matter: time is measured by each watcher alone.
#pragma once

#include "dist/engine.hpp"
#include "dist/verdict.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace foci::dist {

class Watch {
 public:
  /// `names` of the ranks, for the verdict. `ended` is called once, from a thread of the watch,
  /// when there is a verdict and the main thread does not ask for it.
  Watch(const GroupOptions& options, std::vector<std::string> names,
        std::function<void(const std::string&)> ended);
  ~Watch();

  /// The main thread gets on.
  void alive() { marks_.fetch_add(1, std::memory_order_relaxed); }
  /// What the main thread does between these two waits for others.
  void begin_to_wait() { waits_.store(true, std::memory_order_relaxed); }
  void end_wait() {
    done_.fetch_add(1, std::memory_order_relaxed);
    waits_.store(false, std::memory_order_relaxed);
    alive();
  }
  /// The same, once the ranks have met: what comes until the first sum may take long.
  void connected() { waits_.store(false, std::memory_order_relaxed); }
  void allow(double seconds) { allowed_.store(seconds, std::memory_order_relaxed); }
  void saved(std::int64_t step) { saved_.store(step, std::memory_order_relaxed); }

  /// This rank gives up.
  void fail(const std::string& reason);
  /// A connection broke here. Waits until it is known whose fault that is, and tells.
  std::string reason(const std::string& seen);
  /// All ranks are done: waits for them, and ends the watch.
  void leave();

 private:
  using Clock = Sign::Clock;

  void beat();   // the thread that talks to the store
  void guard();  // the thread that looks whether the other one is still answered
  void tell_own(std::int64_t number);
  void look_at(int rank);
  bool take_verdict();
  std::string doubt();  // the verdict of a rank that looks; empty: nothing is wrong
  std::string of_all();
  void post(const std::string& text);
  void settle(const std::string& text);
  void stay() const;
  std::string own_fault() const;
  std::string name_of(int rank) const;
  std::string with_saved(std::string text) const;
  bool is_over() const { return stop_.load() || known_.load(); }

  const Standing standing_;
  const std::chrono::duration<double> patience_;
  const std::vector<std::string> names_;
  const std::function<void(const std::string&)> ended_;
  Meeting meeting_;
  std::vector<Sign> signs_;
  std::atomic<std::int64_t> marks_ = 0, done_ = 0, saved_ = -1;
  std::atomic<double> allowed_ = 0;
  std::atomic<bool> waits_ = false, stop_ = false, known_ = false, asked_ = false, broken_ = false;
  std::atomic<bool> leaves_ = false;
  std::atomic<Clock::time_point> answered_;
  mutable std::mutex lock_;
  std::condition_variable news_;
  std::string verdict_, own_fault_;
  std::thread beats_, guards_;
};

}  // namespace foci::dist
