// SPDX-License-Identifier: Apache-2.0
// What a measurement was made on, as Linux tells it.
#include "cli/machine.hpp"

#include "cli/suggest.hpp"

#include <foci/device.hpp>

#include <fmt/core.h>
#include <malloc.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <thread>

namespace foci::cli {

namespace {

constexpr double kibibyte = 1024;

/// Begins the count of VmHWM again. False where Linux does not allow it.
bool forget_peak() {
  std::ofstream file("/proc/self/clear_refs");
  return bool(file << "5" << std::flush);
}

[[noreturn]] void tell_gpu_machine(int to) {
  try {
    const std::string text = gpu_machine_text();
    ::_exit(::write(to, text.data(), text.size()) == ssize_t(text.size()) ? 0 : 1);
  } catch (const std::exception&) {
    ::_exit(1);
  }
}

/// Empty where there is no process to be had, or it failed.
std::string told_gpu_machine() {
  int ends[2];
  if (::pipe(ends) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) tell_gpu_machine(ends[1]);
  ::close(ends[1]);
  std::string text(1024, ' ');
  const ssize_t length = child < 0 ? 0 : ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  if (child > 0) ::waitpid(child, nullptr, 0);
  text.resize(length > 0 ? std::size_t(length) : 0);
  return text;
}

}  // namespace

std::string this_host() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

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

std::string gpu_machine_text() {
  const std::vector<Device> gpus = has_cuda() ? devices() : std::vector<Device>();
  return gpus.empty() ? machine_text() : fmt::format("{}; {}", gpus[0].name, machine_text());
}

std::string gpu_machine_text_apart() {
  static const std::string text = told_gpu_machine();
  return text.empty() ? machine_text() : text;
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

std::string program_folder() {
  std::error_code fault;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", fault);
  return fault ? std::string() : path.parent_path().string();
}

std::optional<std::size_t> peak_resident(const std::function<void()>& task) {
  malloc_trim(0);  // what was freed before is not the task's
  const bool counted = forget_peak();
  task();
  std::ifstream facts("/proc/self/status");
  std::string line;
  while (counted && std::getline(facts, line)) {
    if (line.starts_with("VmHWM:")) return std::size_t(kibibyte * std::stod(line.substr(6)));
  }
  return {};
}

}  // namespace foci::cli
