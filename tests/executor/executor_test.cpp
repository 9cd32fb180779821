// SPDX-License-Identifier: Apache-2.0
// The executor: every task once, exceptions, progress, runs inside and beside one another.
#include <foci/error.hpp>
#include <foci/executor.hpp>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "sanitized.hpp"
#include "thrown.hpp"

namespace foci {
namespace {

class Threads : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Executor, Threads, testing::Values(1, 2, 3, 8));

TEST_P(Threads, RunsEveryTaskOnce) {
  Executor executor(GetParam());
  EXPECT_EQ(executor.threads(), GetParam());
  for (std::int64_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> times(std::size_t(count) + 1);
    executor.run(count, [&](std::int64_t i, int thread) {
      EXPECT_GE(thread, 0);
      EXPECT_LT(thread, GetParam());
      ++times[std::size_t(i)];
    });
    for (std::int64_t i = 0; i < count; ++i) EXPECT_EQ(times[std::size_t(i)], 1) << i;
    EXPECT_EQ(times.back(), 0);
  }
}

/// Another library's threads, as many as it is asked for.
void on_new_threads(void* runs, int n, void (*work)(void*, int), void* task) {
  ++*static_cast<int*>(runs);
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back([=] { work(task, i); });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Threads, SomebodyElsesThreadsServeAsWell) {
  int runs = 0;
  Executor executor(GetParam(), &on_new_threads, &runs);
  EXPECT_EQ(executor.threads(), GetParam());
  std::vector<std::atomic<int>> times(100);
  executor.run(100, [&](std::int64_t i, int thread) {
    EXPECT_LT(thread, GetParam());
    ++times[std::size_t(i)];
    executor.run(3, [&](std::int64_t, int inside) { EXPECT_EQ(inside, thread); });
  });
  for (const auto& n : times) EXPECT_EQ(n, 1);
  EXPECT_EQ(runs, GetParam() > 1 ? 1 : 0);
  EXPECT_EQ(thrown<std::runtime_error>([&] {
              executor.run(100, [&](std::int64_t i, int) {
                if (i >= 7) throw std::runtime_error(std::to_string(i));
              });
            }),
            "7");
}

TEST(Executor, WantsAFunctionThatSpreads) {
  EXPECT_EQ(thrown<InvalidArgument>([] { Executor(2, nullptr, nullptr); }),
            "an executor over 2 threads of somebody else; it needs 1 to 4096 and a function that "
            "spreads work");
}

TEST_P(Threads, ManyShortRuns) {
  Executor executor(GetParam());
  std::atomic<std::int64_t> sum = 0;
  for (int run = 0; run < 2000; ++run) {
    executor.run(run % 5, [&](std::int64_t i, int) { sum += i + 1; });
  }
  EXPECT_EQ(sum, 400 * (1 + 3 + 6 + 10));
}

TEST_P(Threads, ThrowsTheFirstExceptionByNumber) {
  Executor executor(GetParam());
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::atomic<int> finished = 0;
    EXPECT_EQ(thrown<std::runtime_error>([&] {
                executor.run(100, [&](std::int64_t i, int) {
                  if (i >= 10) throw std::runtime_error("task " + std::to_string(i));
                  ++finished;
                });
              }),
              "task 10");
    EXPECT_EQ(finished, 10);
  }
  int after = 0;
  executor.run(1, [&](std::int64_t, int) { ++after; });
  EXPECT_EQ(after, 1) << "an executor works on after a failure";
}

TEST_P(Threads, ARunInsideATaskStaysOnItsThread) {
  Executor executor(GetParam());
  std::atomic<int> inner = 0;
  executor.run(8, [&](std::int64_t, int outside) {
    const auto id = std::this_thread::get_id();
    executor.run(5, [&](std::int64_t, int inside) {
      EXPECT_EQ(inside, outside);
      EXPECT_EQ(std::this_thread::get_id(), id);
      ++inner;
    });
  });
  EXPECT_EQ(inner, 40);
}

TEST_P(Threads, RunsFromManyThreadsTakeTurns) {
  Executor executor(GetParam());
  const auto threads = std::size_t(GetParam());
  std::vector<std::atomic<bool>> busy(threads);
  std::vector<std::int64_t> scratch(threads, 0);  // unguarded on purpose
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 100; ++repeat) {
        executor.run(6, [&](std::int64_t i, int thread) {
          EXPECT_FALSE(busy[std::size_t(thread)].exchange(true)) << "one number, two threads";
          scratch[std::size_t(thread)] += i;
          busy[std::size_t(thread)] = false;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(std::accumulate(scratch.begin(), scratch.end(), std::int64_t(0)), 4 * 100 * 15);
}

TEST_P(Threads, ProgressCountsUpOneByOne) {
  struct Log {
    std::vector<std::int64_t> done;
    std::int64_t count = 0;
  } log;
  Executor executor(GetParam());
  executor.on_progress(
      [](void* context, std::int64_t done, std::int64_t count) {
        static_cast<Log*>(context)->done.push_back(done);
        static_cast<Log*>(context)->count = count;
      },
      &log);
  executor.run(20, [](std::int64_t, int) {});
  ASSERT_EQ(log.done.size(), 20u);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(log.done[i], std::int64_t(i) + 1);
  EXPECT_EQ(log.count, 20);
  executor.on_progress(nullptr, nullptr);
  executor.run(20, [](std::int64_t, int) {});
  EXPECT_EQ(log.done.size(), 20u);
}

TEST_P(Threads, ProgressMayStopItself) {
  struct Context {
    Executor executor;
    int calls = 0;
  } context{Executor(GetParam()), 0};
  context.executor.on_progress(
      [](void* at, std::int64_t, std::int64_t) {
        ++static_cast<Context*>(at)->calls;
        static_cast<Context*>(at)->executor.on_progress(nullptr, nullptr);
      },
      &context);
  context.executor.run(20, [](std::int64_t, int) {});
  EXPECT_EQ(context.calls, 1);
}

TEST_P(Threads, WaitsForTasksStillRunning) {
  Executor executor(GetParam());
  std::atomic<int> finished = 0;
  executor.run(GetParam(), [&](std::int64_t, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++finished;
  });
  EXPECT_EQ(finished, GetParam());
}

TEST(Executor, AllThreadsTakePart) {
  Executor executor(4);
  std::atomic<int> inside = 0;
  executor.run(4, [&](std::int64_t, int) {
    ++inside;
    while (inside < 4) std::this_thread::yield();  // ends only if four tasks run side by side
  });
  EXPECT_EQ(inside, 4);
}

TEST(Executor, AnotherExecutorInsideATask) {
  Executor outer(2), inner(2);
  std::atomic<int> sum = 0;
  outer.run(4, [&](std::int64_t, int) { inner.run(4, [&](std::int64_t, int) { ++sum; }); });
  EXPECT_EQ(sum, 16);
}

TEST(Executor, RefusesToWaitForItself) {
  Executor outer(2), inner(2);
  const std::string message = thrown<InvalidArgument>([&] {
    outer.run(1, [&](std::int64_t, int) {
      inner.run(4, [&](std::int64_t, int) { outer.run(1, [](std::int64_t, int) {}); });
    });
  });
  EXPECT_EQ(message,
            "a run on an executor that is waiting for this very task through another executor; "
            "it needs an executor of its own");
}

TEST(Executor, ZeroMeansOnePerCore) {
  EXPECT_EQ(Executor().threads(), std::max(1, int(std::thread::hardware_concurrency())));
}

TEST(Executor, RefusesBadNumbers) {
  EXPECT_EQ(thrown<InvalidArgument>([] { Executor(-1); }),
            "an executor of -1 threads; it needs 1 to 4096, or 0 for one per core");
  EXPECT_THROW(Executor(4097), InvalidArgument);
  Executor executor(1);
  EXPECT_EQ(thrown<InvalidArgument>([&] { executor.run(-1, [](std::int64_t, int) {}); }),
            "a run of -1 tasks; it needs a count >= 0");
}

TEST(Executor, SaysHowManyThreadsCouldBeStarted) {
  if (sanitized) GTEST_SKIP() << "the sanitizer needs address space of its own";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit tight{std::min<rlim_t>(rlim_t(1) << 30, before.rlim_max), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  std::string message;
  try {
    Executor executor(4096);
  } catch (const Error& error) {
    message = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(message.starts_with("could start only ")) << message;
  EXPECT_NE(message.find(" of 4096 threads (Resource temporarily unavailable); ask for fewer"),
            message.npos)
      << message;
}

}  // namespace
}  // namespace foci
