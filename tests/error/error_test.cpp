// SPDX-License-Identifier: Apache-2.0
// Warnings: printed once a text by default, handed to the caller's handler when there is one.
#include <foci/error.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace foci {
namespace {

std::atomic<int> heard = 0;
std::string last;

void count(std::string_view) { ++heard; }
void remember(std::string_view message) { last = message; }

TEST(Warning, PrintsEachTextOnce) {
  testing::internal::CaptureStderr();
  warn("the metric leaks");
  warn("too few seeds");
  warn("the metric leaks");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "foci: warning: the metric leaks\nfoci: warning: too few seeds\n");
}

TEST(Warning, ManyThreadsPrintOneLine) {
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([] { warn("said by eight threads"); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "foci: warning: said by eight threads\n");
}

TEST(Warning, HandlerGetsEveryOne) {
  const WarningHandler before = set_warning_handler(count);
  heard = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { warn("again"); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(heard, 4);
  EXPECT_EQ(set_warning_handler(before), count);
}

TEST(Warning, NullRestoresTheDefault) {
  set_warning_handler(remember);
  warn("to the handler");
  EXPECT_EQ(last, "to the handler");
  EXPECT_EQ(set_warning_handler(nullptr), remember);
  testing::internal::CaptureStderr();
  warn("to standard error");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "foci: warning: to standard error\n");
  EXPECT_EQ(last, "to the handler");
}

TEST(Error, EveryKindIsAnError) {
  EXPECT_THROW(throw InvalidArgument("x"), Error);
  EXPECT_THROW(throw Unsupported("x"), Error);
  EXPECT_THROW(throw FileError("x"), Error);
  EXPECT_THROW(throw NumericalError("x"), Error);
}

}  // namespace
}  // namespace foci
