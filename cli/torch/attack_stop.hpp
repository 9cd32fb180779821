// SPDX-License-Identifier: Apache-2.0
// The last word of an attack that is told to end: where what it found stands.
#pragma once

#include <array>
#include <csignal>
#include <string>

namespace foci::cli {

/// SIGINT and SIGTERM say `text` on standard error while this lives, and then end the program as
/// they would have. One that somebody else waits for is left to them. There is one of these at
/// most.
class LastWord {
 public:
  explicit LastWord(std::string text);
  ~LastWord();
  LastWord(const LastWord&) = delete;
  LastWord& operator=(const LastWord&) = delete;

 private:
  static constexpr std::array signals = {SIGINT, SIGTERM};
  std::array<bool, signals.size()> taken_{};
};

}  // namespace foci::cli
