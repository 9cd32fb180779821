// SPDX-License-Identifier: Apache-2.0
// Another program that is asked one line at a time and answers with one. It ends when its owner
// does: its input closes, and what has not ended a moment later is killed.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/types.h>

namespace foci::cli {

/// Why a program gave no answer, in one line.
class NoAnswer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Process {
 public:
  /// The program and its arguments; a name without a slash is looked for on the PATH. What it says
  /// on standard error is dropped. Throws NoAnswer when it cannot be started.
  explicit Process(const std::vector<std::string>& words);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Sends a line. An end of the program shows when the answer is read.
  void say(const std::string& line);
  /// The next line it says. Throws NoAnswer when it ends or lets the time pass.
  std::string hear(std::chrono::seconds most);

 private:
  std::string name_;
  pid_t child_ = -1;
  int socket_ = -1;
  std::string heard_;  // beyond the last whole line
};

}  // namespace foci::cli
