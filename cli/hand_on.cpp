// SPDX-License-Identifier: Apache-2.0
// How `foci`, which knows no torch, serves the verbs that need it: the program foci-torch beside it
// takes its place with the same words.
#include "cli/machine.hpp"
#include "cli/verbs.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace foci::cli {

int run(const WithTorch& verb) {
  const std::string program = program_folder() + "/foci-torch";
  if (::access(program.c_str(), X_OK) != 0) {
    throw Unsupported(
        fmt::format("{} needs torch, and this build has no {}; with libtorch-dev "
                    "cmake builds it",
                    verb.arguments[0], program));
  }
  std::vector<char*> words{const_cast<char*>("foci-torch")};
  for (const std::string& word : verb.arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  // torch waits in libgomp and in OpenBLAS, whose threads spin on the same cores: a step on two of
  // them takes half the time when they soon sleep. Both read it when they are loaded.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", "2000", 0);
  ::setenv("OPENBLAS_THREAD_TIMEOUT", "14", 0);  // 2^14 ticks of the clock
  ::execv(program.c_str(), words.data());
  throw Error(fmt::format("{}: {}", program, std::generic_category().message(errno)));
}

}  // namespace foci::cli
