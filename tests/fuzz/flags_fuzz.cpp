// SPDX-License-Identifier: Apache-2.0
// Throws arbitrary command lines at the flag parser: the input's lines are the arguments. Parsing
// reads no file and runs nothing; it must end in a verb or in Misuse with one line of text, never
// in anything else.
#include "cli/misuse.hpp"
#include "cli/verbs.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> arguments;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    arguments.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  try {
    foci::cli::parse(arguments);
  } catch (const foci::cli::Misuse& misuse) {
    const std::string_view message = misuse.what();
    if (message.empty() || message.find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
