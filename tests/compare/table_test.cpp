// SPDX-License-Identifier: Apache-2.0
// The runs of a comparison while they go on: on a terminal a table that renews itself and is gone
// in the end, elsewhere a plain line.
#include "train/child.hpp"

#include "cli/compare_table.hpp"

#include <gtest/gtest.h>
#include <pty.h>

#include <fstream>
#include <thread>

namespace {

using foci::cli::LiveTable;
using foci::cli::RunState;
using foci::cli::Show;

std::vector<RunState> runs() {
  return {{.mechanism = "dot", .folder = "a", .seed = 0, .state = "done"},
          {.mechanism = "flat",
           .folder = "b",
           .seed = 12,
           .state = "running",
           .stage = "training",
           .step = 40,
           .steps = 160,
           .per_second = 812.4},
          {.mechanism = "random", .folder = "c", .seed = 0, .state = "failed", .error = "x"},
          {.mechanism = "layer-change",
           .folder = "d",
           .seed = 0,
           .state = "running",
           .place = "rank 1 on node2"}};
}

/// Standard error as another file, until this ends.
class Redirected {
 public:
  explicit Redirected(int to) : before_(::dup(STDERR_FILENO)) {
    std::fflush(stderr);
    ::dup2(to, STDERR_FILENO);
  }
  ~Redirected() {
    std::fflush(stderr);
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  int before_;
};

/// All that was written to a terminal of so many columns, its line ends those of a file.
std::string on_a_terminal(unsigned short columns, const std::function<void()>& work) {
  int here = -1, there = -1;
  const winsize size{24, columns, 0, 0};
  EXPECT_EQ(::openpty(&here, &there, nullptr, nullptr, &size), 0);
  ::setenv("TERM", "xterm", 1);
  {
    const Redirected redirected(there);
    work();
  }
  ::close(there);
  std::string text;
  char part[4096];
  for (ssize_t n = 0; (n = ::read(here, part, sizeof part)) > 0;) text.append(part, std::size_t(n));
  ::close(here);
  std::erase(text, '\r');
  return text;
}

/// Longer than a table waits before it renews itself.
void wait_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(350)); }

TEST(CompareTable, RenewsItselfOnATerminalAndIsGoneInTheEnd) {
  const std::string text = on_a_terminal(100, [] {
    LiveTable table(Show::progress, "images");
    table.at(runs(), 100, "dot 86.1 %");
    table.at(runs(), 100, "at once: too soon to be shown");
    wait_a_moment();
    std::vector<RunState> later = runs();
    later.resize(2);
    table.at(later, 0, "", true);
  });
  EXPECT_EQ(text,
            "compare: 1 of 4 runs done, 1 failed, 1 min 40 s left; best so far: dot 86.1 %\n"
            "  flat               seed 12  training 40 of 160, 812 images/s\n"
            "  layer-change       seed 0   rank 1 on node2: starting\n"
            "\x1b[3A\x1b[J"
            "compare: 1 of 2 runs done, told to stop: the others save\n"
            "  flat               seed 12  training 40 of 160, 812 images/s\n"
            "\x1b[2A\x1b[J");
}

TEST(CompareTable, NoLineIsLongerThanTheTerminal) {
  const std::string text = on_a_terminal(30, [] {
    LiveTable table(Show::progress, "images");
    table.at(runs(), 100, "dot 86.1 %");
  });
  std::istringstream lines(text.substr(0, text.find('\x1b')));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_LT(line.size(), 30u) << line;
  EXPECT_EQ(count, 3);
  EXPECT_TRUE(text.ends_with("\x1b[3A\x1b[J")) << text;
}

TEST(CompareTable, ElsewhereIsOnePlainLineNowAndThen) {
  const std::string path = train_test::folder().file("table.txt");
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  {
    const Redirected redirected(file);
    LiveTable table(Show::progress, "images"), none(Show::nothing, "images");
    table.at(runs(), 0, "");
    wait_a_moment();
    table.at(runs(), 0, "");
    none.at(runs(), 0, "");
  }
  ::close(file);
  EXPECT_EQ(train_test::read(path),
            "compare: 1 of 4 runs done, 1 failed; flat 12: training 40 of 160, 812 images/s; "
            "layer-change 0: rank 1 on node2: starting\n");
}

}  // namespace
