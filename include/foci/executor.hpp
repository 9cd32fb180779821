// SPDX-License-Identifier: Apache-2.0
// A fixed set of threads that share out numbered tasks. Which thread runs a task never changes its
// result.
#pragma once

#include <foci/export.h>

#include <cstdint>
#include <memory>
#include <type_traits>

namespace foci {

class FOCI_API Executor {
 public:
  /// `threads` >= 1, the caller counted in; 0 = one per core.
  explicit Executor(int threads = 0);
  /// Somebody else's threads: spread(context, n, work, task) must call work(task, i) for every i in
  /// [0, n), at once where it can, and return when all calls have; n <= threads.
  using Spread = void (*)(void* context, int n, void (*work)(void* task, int i), void* task);
  Executor(int threads, Spread spread, void* context);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int threads() const;

  /// Calls task(index, thread) for every index in [0, count); thread in [0, threads()). Returns
  /// when all are done. When tasks throw, those not yet begun are left out and the exception of the
  /// lowest index is thrown again here. Runs from several threads take turns; a run from inside a
  /// task stays on that task's thread.
  template <class Task>
  void run(std::int64_t count, Task&& task) {
    run_erased(
        count,
        [](void* t, std::int64_t i, int thread) {
          (*static_cast<std::remove_reference_t<Task>*>(t))(i, thread);
        },
        const_cast<void*>(static_cast<const void*>(&task)));
  }

  /// Called after each finished task, from one thread at a time; nullptr stops it. A run from
  /// inside a task is not counted.
  using Progress = void (*)(void* context, std::int64_t done, std::int64_t count);
  void on_progress(Progress progress, void* context);

 private:
  using Erased = void (*)(void* task, std::int64_t index, int thread);
  void run_erased(std::int64_t count, Erased call, void* task);

  struct Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace foci
