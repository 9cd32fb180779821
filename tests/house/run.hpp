// SPDX-License-Identifier: Apache-2.0
// Runs a shell command and gives back its exit code and everything it printed.
#pragma once

#include <array>
#include <cstdio>
#include <string>

#include <sys/wait.h>

namespace house {

struct Ran {
  int exit_code = -1;
  std::string output;  ///< standard output and standard error
};

inline Ran run(const std::string& command) {
  Ran ran;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ran;
  std::array<char, 4096> piece;
  while (const auto got = std::fread(piece.data(), 1, piece.size(), pipe)) {
    ran.output.append(piece.data(), got);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ran.exit_code = WEXITSTATUS(status);
  return ran;
}

}  // namespace house
