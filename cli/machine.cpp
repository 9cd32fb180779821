// SPDX-License-Identifier: Apache-2.0
// What a measurement was made on, as Linux tells it.
#include "cli/machine.hpp"

#include "cli/suggest.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <fstream>
#include <thread>

namespace foci::cli {

std::string cpu_model() {
  std::ifstream facts("/proc/cpuinfo");
  std::string line;
  while (std::getline(facts, line)) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos)
      return shown(line.substr(colon + 2));
  }
  return "unknown processor";
}

int cpu_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
  return int(std::thread::hardware_concurrency());
}

std::string machine_text() {
  const int cores = cpu_cores();
  return fmt::format("{}, {} core{}", cpu_model(), cores, cores == 1 ? "" : "s");
}

std::string commit_text() { return FOCI_COMMIT; }

std::vector<std::string> instruction_sets() {
  std::vector<std::string> sets;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) sets.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) sets.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) sets.emplace_back("avx512f");
#elif defined(__aarch64__)
  sets.emplace_back("neon");
#endif
  return sets;
}

}  // namespace foci::cli
