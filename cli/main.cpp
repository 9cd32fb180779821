// SPDX-License-Identifier: Apache-2.0
// The program foci: hands its arguments over and returns the exit status.
#include "cli/verbs.hpp"

#include <csignal>
#include <string>
#include <vector>

int main(int count, char** arguments) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error to tell, not an end
  return foci::cli::run_command(
      std::vector<std::string>(arguments + (count > 0 ? 1 : 0), arguments + count));
}
